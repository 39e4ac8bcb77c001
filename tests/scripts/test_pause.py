"""W25: a pause of a semaphore is a cooling lease with more permits than can be free, and none of its holders."""

import pytest

from tests.scripts import older, states
from tests.scripts.calls import HOUR_MS, TTL, Busy, Granted, Queued, Refused, Scripts, on_server, token

PAUSE = 60_000
"""Milliseconds."""

_LIMIT = 10**9


def is_paused(semaphore: Scripts) -> bool:
    return isinstance(semaphore.grant("zoe", limit=0, wait=False), Busy)


def terms(semaphore: Scripts) -> bytes:
    text: bytes = semaphore.redis.hget(semaphore.key("meta"), "pause")
    return text


def largest(semaphore: Scripts) -> list[int]:
    """Return the largest weight and TTL on record."""
    return [int(each or 0) for each in semaphore.redis.hmget(semaphore.key("meta"), "weight", "ttl")]


def paused_until(semaphore: Scripts) -> int:
    """Return for how many ms the set says that it is paused."""
    return states.zset(semaphore, semaphore.keys.base)[b"pause"] - states.now_us(semaphore) // 1_000


def test_nothing_is_granted_and_what_is_held_stays_held(semaphore: Scripts) -> None:
    fence = semaphore.granted("ann").fence
    assert semaphore.pause(PAUSE) == (PAUSE, [])
    assert isinstance(semaphore.grant("ben", wait=False), Busy)
    assert isinstance(semaphore.grant("ben"), Queued)
    assert semaphore.renew("ann", 2 * TTL)
    assert semaphore.renew_many((semaphore, "ann", TTL)) == [True]
    assert semaphore.granted("ann").fence == fence
    assert semaphore.hand_off("ann") == 1
    assert semaphore.adopt("cat") > fence
    assert semaphore.release("cat").mine == semaphore.recheck("ben").mine == []
    assert list(states.holders(semaphore)) == ["pause"]


@pytest.mark.parametrize("first", [PAUSE, 3 * PAUSE])
def test_a_later_pause_only_extends_an_earlier_one(semaphore: Scripts, first: int) -> None:
    semaphore.granted("ann")
    semaphore.pause(first)
    left, _ = semaphore.pause(2 * PAUSE)
    for told in (left, paused_until(semaphore)):
        assert max(first, 2 * PAUSE) - 1_000 < told <= max(first, 2 * PAUSE)
    assert semaphore.statistics().holders == 1


@pytest.mark.parametrize("limit", [_LIMIT, 5, 1])
def test_no_limit_lets_anyone_in(semaphore: Scripts, limit: int) -> None:
    """Whether it is resized or declared."""
    semaphore.granted("ann")
    semaphore.pause(PAUSE)
    semaphore.queued("ben")
    assert semaphore.resize(limit)[1] == []
    assert is_paused(semaphore)
    assert isinstance(semaphore.grant("cat", limit=limit + 1, declare=True), Queued)
    assert semaphore.grant("dan", permits=limit + 2, limit=limit + 1) == Refused(limit + 1)
    assert [grant.who for grant in semaphore.pause(0)[1]] == (["ben", "cat"] if limit > 1 else ["ben"])


@pytest.mark.parametrize("permits", [1, 2])
def test_counting_again_counts_a_pause_for_all_there_is(semaphore: Scripts, permits: int) -> None:
    """An older version of the scripts moves the witness, and counts holders one by one where each had one permit."""
    semaphore.granted("ann", permits=permits)
    semaphore.pause(PAUSE)
    semaphore.redis.hdel(semaphore.key("meta"), "used")
    assert is_paused(semaphore)
    semaphore.release("ann", permits=permits)
    older.release(semaphore, "ann")
    assert is_paused(semaphore)
    semaphore.redis.hdel(semaphore.key("meta"), "pause", "used")
    assert is_paused(semaphore), "of which nothing is known"
    assert semaphore.pause(0)[0] == 1
    assert isinstance(semaphore.grant("ben", permits=3), Granted)


def test_a_pause_outlasts_the_deletion_of_the_hash(semaphore: Scripts) -> None:
    semaphore.granted("ann")
    semaphore.pause(PAUSE)
    semaphore.redis.delete(semaphore.key("meta"))
    assert isinstance(semaphore.grant("ben", wait=False), Busy)
    assert semaphore.statistics().paused_ms > PAUSE - 1_000
    assert semaphore.run("holders", first=0)[1:3] == [token("ann"), b"0"]
    assert semaphore.revoke(0, 10**16, look=True).hit[0][:1] == (0,)
    assert semaphore.pause(0)[0] == 1


@pytest.mark.parametrize("ended", ["over", "resumed"])
def test_holders_of_which_nothing_is_known_count_as_the_limit_after_a_pause(semaphore: Scripts, ended: str) -> None:
    """W21. The pause itself says nothing of them, and the limit may come back meanwhile."""
    for who in ("ann", "ben"):
        semaphore.granted(who, limit=3)
    semaphore.redis.delete(semaphore.key("meta"))
    semaphore.pause(PAUSE)
    assert isinstance(semaphore.grant("cat", limit=3, declare=True, wait=False), Busy)
    if ended == "resumed":
        semaphore.pause(0)
    else:
        states.lapse(semaphore, b"pause")
    assert isinstance(semaphore.grant("dan", limit=3, wait=False), Busy)


def test_a_pause_whose_terms_were_deleted_is_counted_when_it_is_extended(semaphore: Scripts) -> None:
    semaphore.granted("ann", limit=3)
    semaphore.pause(PAUSE)
    semaphore.redis.delete(semaphore.key("meta"))
    semaphore.pause(2 * PAUSE)
    assert isinstance(semaphore.grant("ben", limit=3, declare=True, wait=False), Busy)


def test_the_terms_of_a_pause_are_those_of_a_cooling_lease(semaphore: Scripts) -> None:
    """Its fencing token is the last one, in digits: as 1.79e+15 its mark was not known."""
    semaphore.pause(PAUSE)
    assert terms(semaphore) == b"1000000000 0 C"
    semaphore.pause(0)
    fence = semaphore.granted("ann").fence
    semaphore.pause(PAUSE)
    assert terms(semaphore) == b"1000000000 %d C" % fence
    assert int(states.last_fence(semaphore)) == fence


def test_a_pause_is_no_holder(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.granted("ben")
    semaphore.release("ben", min_hold_ms=2 * PAUSE)
    semaphore.pause(PAUSE)
    told = semaphore.statistics()
    assert (told.permits, told.holders, told.kept) == (3, 2, 1)
    assert PAUSE - 1_000 < told.paused_ms <= PAUSE
    assert told.kept_until_ms > states.now_us(semaphore) // 1_000 + PAUSE + 1_000, "that of the cooling lease"
    assert semaphore.run("holders", first=0)[1::4] == [token("ann")]


@pytest.mark.parametrize("force", [True, False])
def test_to_revoke_all_holders_ends_no_pause(semaphore: Scripts, force: bool) -> None:
    semaphore.granted("ann")
    semaphore.pause(PAUSE)
    fence = states.fence_of(semaphore, "ann")
    assert [hit[0] for hit in semaphore.revoke(0, 10**16, look=True).hit] == [fence]
    assert (semaphore.revoke(fence, force=force).left_ms == 0) == force
    assert is_paused(semaphore)
    assert semaphore.renew("ann") is False
    assert semaphore.statistics().paused_ms > 0


@pytest.mark.parametrize("session", ["home", "away"])
def test_the_first_waiter_learns_when_to_look(full: Scripts, session: str) -> None:
    """W18; also behind a session that has died."""
    full.queued("ben", session="dead")
    full.queued("cat", session=session)
    states.die(full, "dead")
    with states.listening(full, "away") as inbox:
        left, mine = full.pause(PAUSE)
        told = [(one.who, one.fence, one.amount) for one in inbox.messages()]
    notice = ("later", -3, left)
    assert ([(one.who, one.fence, one.amount) for one in mine], told) == (
        ([notice], []) if session == "home" else ([], [notice])
    )


def test_the_answer_says_when_something_can_be_had(semaphore: Scripts) -> None:
    """The end of the pause; or where no permit is free, that of the first lease if it is later."""
    semaphore.granted("ann", permits=2, ttl_ms=5_000)
    semaphore.pause(PAUSE)
    for who in ("ben", "cat"):
        assert PAUSE - 1_000 < semaphore.queued(who).busy_ms <= PAUSE
    assert PAUSE - 1_000 < semaphore.recheck("ben", "cat").busy_ms <= PAUSE
    semaphore.resize(2)
    assert PAUSE - 1_000 < semaphore.recheck("ben").busy_ms <= PAUSE
    semaphore.renew("ann", 2 * PAUSE)
    assert 2 * PAUSE - 1_000 < semaphore.recheck("ben").busy_ms <= 2 * PAUSE
    semaphore.resize(3)
    assert PAUSE - 1_000 < semaphore.recheck("ben").busy_ms <= PAUSE


@pytest.mark.parametrize(("weights", "most"), [([], 0), ([1], 1), ([1, 2, 2], 3)])
@pytest.mark.parametrize("ended", ["resumed", "over"])
def test_what_a_pause_put_on_record_goes_with_it(semaphore: Scripts, ended: str, weights: list[int], most: int) -> None:
    """Else grants stay slower, and a dead holder's permit lasts for so long after each step back of the clock."""
    semaphore.resize(9)
    for number, permits in enumerate(weights):
        semaphore.granted(f"w{number}w", permits=permits)
    semaphore.pause(24 * HOUR_MS)
    assert largest(semaphore) == [10**9, 24 * HOUR_MS]
    if ended == "resumed":
        semaphore.pause(0)
    else:
        states.lapse(semaphore, b"pause")
        semaphore.recheck()
    weight, ttl_ms = largest(semaphore)
    assert weight == most, "the most that one of them can have, if each has a permit"
    assert ttl_ms == 0 if most == 0 else TTL - 1_000 < ttl_ms <= TTL
    semaphore.granted("ann", ttl_ms=2 * TTL)
    assert largest(semaphore) == [max(most, 1), 2 * TTL]
    assert semaphore.statistics().permits == sum(weights) + 1


def test_what_a_pause_put_on_record_goes_with_the_set(semaphore: Scripts) -> None:
    """Redis removes that itself when a pause is the last in it."""
    semaphore.granted("ann")
    semaphore.release("ann")
    semaphore.pause(24 * HOUR_MS)
    semaphore.redis.delete(semaphore.keys.base)
    assert semaphore.statistics().paused_ms == 0
    assert largest(semaphore) == [0, 0]
    semaphore.granted("ben")
    assert largest(semaphore) == [1, TTL]


def test_after_a_step_back_of_the_clock_it_lasts_no_longer_than_any_lease(semaphore: Scripts) -> None:
    """P9; nor is it cut to less than it was asked for. A dead holder's permit lasts as long."""
    semaphore.granted("ann")
    semaphore.pause(2 * TTL)
    states.ends_in(semaphore, "ann", HOUR_MS)
    semaphore.redis.zincrby(semaphore.keys.base, HOUR_MS, "pause")
    assert is_paused(semaphore)
    assert 2 * TTL - 1_000 < paused_until(semaphore) <= 2 * TTL
    assert 2 * TTL - 1_000 < states.holders(semaphore)["ann"] <= 2 * TTL
    semaphore.redis.zincrby(semaphore.keys.base, HOUR_MS, "pause")
    assert semaphore.pause(TTL)[0] <= 2 * TTL, "what it says is true after that, too"


def test_to_resume_after_a_step_back_of_the_clock_lets_no_lease_last_for_the_step(semaphore: Scripts) -> None:
    """P9: else the step would be the largest TTL on record."""
    semaphore.granted("ann")
    semaphore.pause(PAUSE)
    semaphore.redis.zincrby(semaphore.keys.base, HOUR_MS, token("ann"))
    semaphore.redis.pexpire(semaphore.keys.base, 2 * HOUR_MS)
    assert semaphore.pause(0) == (1, [])
    assert states.holders(semaphore)["ann"] <= PAUSE
    assert largest(semaphore)[1] <= PAUSE


@on_server
def test_it_works_at_the_memory_limit(full: Scripts) -> None:
    """W9: when a service behind it has said 429, and the name is used for the first time as well."""
    fresh = full.named("another")
    full.queued("ben")
    with states.configured(full, maxmemory=1, maxmemory_policy="noeviction"):
        assert full.pause(PAUSE)[0] == PAUSE
        assert fresh.pause(PAUSE) == (PAUSE, [])
        full.release("ann", permits=3)
        assert list(states.holders(full)) == ["pause"]
        ended, mine = full.pause(0)
        assert fresh.pause(0) == (1, [])
    assert (ended, [grant.who for grant in mine]) == (1, ["ben"])
    assert full.statistics().permits == 1


def test_to_resume_hands_over_all_that_is_free(semaphore: Scripts) -> None:
    """W7: to the waiters of the asking session in the reply, and to others by message."""
    semaphore.granted("ann")
    semaphore.pause(PAUSE)
    for who, session in (("ben", "home"), ("cat", "away"), ("dan", "home")):
        semaphore.queued(who, session=session)
    with states.listening(semaphore, "away") as inbox:
        ended, mine = semaphore.pause(0)
        assert [message.who for message in inbox.messages()] == ["cat"]
    assert (ended, [grant.who for grant in mine]) == (1, ["ben"])
    assert sorted(states.holders(semaphore)) == ["ann", "ben", "cat"]


def test_a_cooling_lease_beside_it_ends_as_it_would(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=3)
    semaphore.pause(PAUSE)
    assert semaphore.release("ann", permits=3, min_hold_ms=2 * PAUSE).ended
    semaphore.pause(0)
    assert isinstance(semaphore.grant("ben", wait=False), Busy)
    states.lapse(semaphore, "ann")
    semaphore.granted("ben", permits=3)


def test_a_pinned_limit_stays_pinned(semaphore: Scripts) -> None:
    semaphore.resize(2, pin=1)
    semaphore.pause(PAUSE)
    assert states.pttl(semaphore, semaphore.key("meta")) > 29 * 24 * HOUR_MS
    semaphore.pause(0)
    semaphore.granted("ann", limit=3, declare=True)
    assert semaphore.redis.hget(semaphore.key("meta"), "limit") == b"+2"
    assert states.pttl(semaphore, semaphore.key("meta")) > 29 * 24 * HOUR_MS
