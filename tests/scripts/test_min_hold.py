"""W18: a lease that is released before `min_hold` is over keeps its name taken for the rest of it, and is no one's."""

import time

import pytest

from aiolocks._core.modes import SHARED, UPGRADE, UPGRADEABLE
from tests.scripts.calls import LIFE, SLACK, TTL, Busy, Granted, Refused, Released, Scripts, Withdrawn, on_server, token
from tests.scripts.states import configured, contents, die, fence_of, holders, lapse, line, listening, pttl, sessions

MIN = 10_000
"""Milliseconds from the grant."""

TAKEN = Released(ended=True, mine=[])


@pytest.fixture
def cooling(exclusive: Scripts) -> Scripts:
    """Held by ann, who has let go."""
    exclusive.granted("ann")
    assert exclusive.release("ann", min_hold_ms=MIN) == TAKEN
    return exclusive


def marked(scripts: Scripts, who: str) -> bool:
    if scripts.kind == "lock":
        value = scripts.redis.get(scripts.key("holder"))
    else:
        value = scripts.redis.hget(scripts.key("meta"), token(who))
    return bool(value) and value.endswith(b" C")


def test_the_release_script_keeps_a_name_longer_than_the_ttl_for_min_hold(exclusive: Scripts) -> None:
    exclusive.granted("ann", ttl_ms=1_000)
    assert exclusive.release("ann", ttl_ms=1_000, min_hold_ms=5 * TTL) == TAKEN
    assert 5 * TTL - SLACK < holders(exclusive)["ann"] <= 5 * TTL
    assert isinstance(exclusive.grant("ben", wait=False), Busy)
    assert 5 * TTL - SLACK < holders(exclusive)["ann"] <= 5 * TTL, "it is not taken for what a stepped clock left"
    assert min(pttl(exclusive, key) for key in contents(exclusive)) > LIFE


def test_when_that_time_is_over_it_is_a_release_like_any_other(held: Scripts) -> None:
    time.sleep(0.01)
    assert held.release("ann", min_hold_ms=5) == TAKEN
    assert holders(held) == {}


def test_after_a_step_back_of_the_clock_a_name_is_kept_no_longer_than_min_hold_from_then(held: Scripts) -> None:
    far = 60_000_000 * 60 + fence_of(held, "ann")
    if held.kind == "lock":
        held.redis.set(held.key("holder"), b"%b %d" % (token("ann"), far), keepttl=True)
    else:
        terms = held.redis.hget(held.key("meta"), token("ann")).split()[0]
        held.redis.hset(held.key("meta"), token("ann"), b"%b %d" % (terms, far))
    held.release("ann", min_hold_ms=MIN)
    assert MIN - SLACK < holders(held)["ann"] <= MIN


@pytest.mark.parametrize("exclusive", ["semaphore", "modes"], indirect=True)
def test_below_zero_min_hold_counts_from_the_release(exclusive: Scripts) -> None:
    """W28: a start counts from when its caller begins, which is later than the grant; it can then outlast its TTL."""
    exclusive.granted("ann", ttl_ms=1_000)
    time.sleep(0.2)
    assert exclusive.release("ann", ttl_ms=1_000, min_hold_ms=-1_000) == TAKEN
    assert 900 < holders(exclusive)["ann"] <= 1_000
    assert exclusive.release("ann", ttl_ms=1_000, min_hold_ms=-9_000) == TAKEN, "it does not begin again"
    assert holders(exclusive)["ann"] <= 1_000


def test_a_repeated_release_says_the_same_and_changes_nothing_nor_does_that_of_another(cooling: Scripts) -> None:
    before, left = contents(cooling), holders(cooling)["ann"]
    assert cooling.release("ann", min_hold_ms=MIN) == TAKEN
    assert cooling.release("ann", min_hold_ms=10 * MIN) == TAKEN
    assert cooling.release("ann") == TAKEN, "what gives a stray grant back does not know of it"
    assert cooling.release("ben", min_hold_ms=MIN) == cooling.release("an") == Released(ended=False, mine=[])
    assert contents(cooling) == before
    assert holders(cooling)["ann"] <= left


def test_a_kept_name_is_taken_for_what_is_missing_and_is_the_lease_of_no_holder(cooling: Scripts) -> None:
    left = holders(cooling)["ann"]
    assert MIN - SLACK < left <= MIN
    assert marked(cooling, "ann")
    assert not cooling.renew("ann", ttl_ms=10 * TTL)
    assert cooling.renew_many((cooling, "ann", TTL)) == [False]
    assert cooling.grant("ann") == Withdrawn()
    assert cooling.recheck("ann").answers == [0]
    assert holders(cooling)["ann"] <= left


def test_a_newcomer_to_a_kept_name_waits_and_learns_for_how_long(cooling: Scripts) -> None:
    asked = cooling.grant("ben", wait=False)
    assert isinstance(asked, Busy)
    queued = cooling.queued("ben")
    for answer in (asked, queued):
        assert MIN - SLACK < answer.busy_ms <= MIN
    assert MIN - SLACK < cooling.recheck("ben").busy_ms <= MIN
    assert line(cooling) == ["ben"]
    assert not cooling.release("ben", min_hold_ms=MIN).ended
    assert line(cooling) == []


def test_the_own_session_is_told_in_the_reply_when_to_look(awaited_here: Scripts) -> None:
    released = awaited_here.release("ann", min_hold_ms=MIN)
    [told] = released.mine
    assert (released.ended, told.who, told.fence) == (True, "later", -3)
    assert MIN - SLACK < told.amount <= MIN
    assert awaited_here.release("ann", min_hold_ms=MIN) == TAKEN
    assert (list(holders(awaited_here)), line(awaited_here)) == (["ann"], ["ben"])


def test_another_session_is_told_once(awaited: Scripts) -> None:
    awaited.queued("cat")
    with listening(awaited, "away") as inbox, listening(awaited, "home") as own:
        assert awaited.release("ann", min_hold_ms=MIN) == TAKEN
        awaited.release("ann", min_hold_ms=MIN)
        (text,) = inbox.texts()
        assert own.texts() == []
    later, fence, left, base = text.split(b" ", 3)
    assert (later, fence, base) == (b"later", b"-3", awaited.keys.base)
    assert MIN - SLACK < int(left) <= MIN


@pytest.mark.parametrize("gone", ["dead", "killed", "polls"])
@pytest.mark.parametrize("told", ["home", "away"])
def test_the_first_session_that_can_be_told_is_told(held: Scripts, gone: str, told: str) -> None:
    """W2: any number of killed waiters cost the next one nothing, though a forked child of one still listens (F8)."""
    names = [f"{'poll250-' if gone == 'polls' else 's'}{number}" for number in range(49)]
    for number, session in enumerate(names):
        held.queued(f"w{number}w", session=session)
        if gone == "dead":
            die(held, session)
    held.queued("ben", session=told)
    held.queued("cat", session="away")
    with listening(held, "away") as inbox, listening(held, "s0" if gone == "dead" else "other") as other:
        mine = held.release("ann", min_hold_ms=MIN).mine
        assert [grant.who for grant in mine] == ["later"] * (told == "home")
        assert [message.who for message in inbox.messages()] == ["later"] * (told == "away")
        assert other.texts() == []
    assert line(held, "away")[-1] == "cat"


def test_the_own_session_is_told_though_it_was_passed_over(awaited_here: Scripts) -> None:
    """W2: the reply reaches it."""
    awaited_here.queued("cat", session="away")
    awaited_here.redis.zrem(awaited_here.key("queue"), "home")
    with listening(awaited_here, "away") as inbox:
        assert [grant.who for grant in awaited_here.release("ann", min_hold_ms=MIN).mine] == ["later"]
        assert (inbox.texts(), sessions(awaited_here)) == ([], ["home", "away"])


def test_statistics_say_that_it_is_kept_and_until_when(cooling: Scripts) -> None:
    counted = cooling.statistics()
    assert (counted.permits, counted.holders, counted.kept) == (1, 1, 1)
    assert MIN - SLACK < counted.kept_until_ms - 1000 * time.time() <= MIN
    lapse(cooling, "ann")
    cooling.granted("ben")
    counted = cooling.statistics()
    assert (counted.permits, counted.holders, counted.kept, counted.kept_until_ms) == (1, 1, 0, 0)


@on_server
def test_many_that_are_kept_are_counted_in_parts(semaphore: Scripts) -> None:
    semaphore.limit = 2_000
    for number in range(1_100):
        semaphore.granted(f"w{number}w", ttl_ms=100 * TTL)
    for number in range(0, 1_100, 2):
        semaphore.release(f"w{number}w", min_hold_ms=50 * TTL)
    counted = semaphore.statistics()
    assert (counted.permits, counted.holders, counted.kept) == (1_100, 1_100, 550)


def test_a_kept_permit_counts_as_before(semaphore: Scripts) -> None:
    semaphore.limit = 5
    semaphore.granted("ann", permits=3)
    semaphore.granted("ben")
    assert semaphore.release("ann", permits=3, min_hold_ms=MIN) == TAKEN
    counted = semaphore.statistics()
    assert (counted.permits, counted.holders, counted.kept) == (4, 2, 1)
    assert isinstance(semaphore.grant("cat", permits=2, wait=False), Busy)
    assert isinstance(semaphore.grant("dan"), Granted)
    assert semaphore.release("dan").ended
    lapse(semaphore, "ann")
    assert isinstance(semaphore.grant("cat", permits=4), Granted)
    assert semaphore.statistics().permits == 5


def test_the_first_that_ends_is_noticed_when_it_does(semaphore: Scripts) -> None:
    semaphore.limit = 2
    semaphore.granted("ann")
    semaphore.granted("ben")
    semaphore.release("ann", min_hold_ms=200)
    time.sleep(0.21)
    assert isinstance(semaphore.grant("cat"), Granted)
    assert sorted(holders(semaphore)) == ["ben", "cat"]


def test_a_reader_keeps_writers_out_and_no_readers(rwlock: Scripts) -> None:
    rwlock.granted("ann", permits=SHARED)
    assert rwlock.release("ann", permits=SHARED, min_hold_ms=MIN) == TAKEN
    assert isinstance(rwlock.grant("ben", permits=SHARED), Granted)
    assert isinstance(rwlock.grant("cat", wait=False), Busy)
    assert rwlock.release("ben", permits=SHARED).ended
    assert isinstance(rwlock.grant("cat", wait=False), Busy)
    assert rwlock.downgrade("ann", SHARED) == (False, [])


def test_nothing_is_upgraded_from_it(rwlock: Scripts) -> None:
    rwlock.granted("ann", permits=UPGRADEABLE)
    rwlock.release("ann", permits=UPGRADEABLE, min_hold_ms=MIN)
    assert isinstance(rwlock.grant("ann+x", permits=UPGRADE), Refused)


@pytest.mark.parametrize("force", [False, True])
def test_to_revoke_it_frees_it_at_once(cooling: Scripts, force: bool) -> None:
    """No holder has to be told, and none has to let go."""
    cooling.queued("ben")
    fence = fence_of(cooling, "ann")
    revoked = cooling.revoke(fence, force=force)
    assert (revoked.left_ms, [grant.who for grant in revoked.mine]) == (0, ["ben"])
    assert list(holders(cooling)) == ["ben"]
    assert cooling.renew("ben")


def test_to_revoke_one_beside_it_leaves_it(semaphore: Scripts) -> None:
    semaphore.limit = 3
    for who in ("ann", "ben", "cat"):
        semaphore.granted(who)
    semaphore.release("ann", min_hold_ms=MIN)
    assert semaphore.revoke(fence_of(semaphore, "ben")).left_ms > 0
    assert marked(semaphore, "ann")
    first, last = (fence_of(semaphore, who) for who in ("ann", "cat"))
    assert semaphore.revoke(first, last).left_ms > 0, "cat is told, and lets go"
    assert sorted(holders(semaphore)) == ["ben", "cat"]
    assert semaphore.statistics().permits == 2
    assert [semaphore.renew(who) for who in ("ben", "cat")] == [False, False]


def test_a_late_request_is_buried_all_the_same(held: Scripts) -> None:
    held.release("ann", min_hold_ms=MIN, tombstone_ms=TTL)
    assert pttl(held, held.key("tombstone", who="ann")) > 0
    lapse(held, "ann")
    assert held.grant("ann") == Withdrawn()


@on_server
def test_at_the_memory_limit_it_is_released_all_the_same(held: Scripts) -> None:
    with configured(held, maxmemory=1):
        assert held.release("ann", min_hold_ms=MIN) == TAKEN
        assert marked(held, "ann")


def test_a_min_hold_that_is_over_is_not_brought_back(held: Scripts) -> None:
    lapse(held, "ann")
    assert not held.release("ann", min_hold_ms=MIN).ended
    assert holders(held) == {}


def test_a_queue_behind_it_is_kept(held: Scripts) -> None:
    queued = held.queued("ben")
    held.release("ann", min_hold_ms=10 * TTL)
    assert held.recheck("ben").answers == [queued.ticket]
    assert pttl(held, held.key("queue")) > 9 * TTL
