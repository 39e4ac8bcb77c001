"""Permits in use are a number that is kept, with two witnesses: what a script costs does not depend on weights (W21).

An older version of the scripts keeps no number; see `tests.scripts.older`.
"""

from collections.abc import Callable

import pytest
from redis import Redis

from aiolocks._core.modes import SHARED
from bench.crowded import _hold
from tests.scripts import older
from tests.scripts.calls import DAY_MS, FAR, TTL, Busy, Scripts, on_server, token
from tests.scripts.states import holders, lapse, now_us, pttl, set_last_fence
from tests.scripts.test_costs import _cost


def _kept(semaphore: Scripts) -> list[int]:
    return [int(number) for number in semaphore.redis.hget(semaphore.key("meta"), "used").split()]


def test_the_largest_weight_and_ttl_are_known_after_all_leases_ran_out_together(semaphore: Scripts) -> None:
    """Redis removes the set itself then, and the hash is made anew."""
    semaphore.granted("ann", permits=2, ttl_ms=2 * TTL)
    semaphore.redis.delete(semaphore.keys.base)
    semaphore.granted("ben")
    assert semaphore.redis.hmget(semaphore.key("meta"), "weight", "ttl") == [b"2", b"%d" % (2 * TTL)]
    assert _kept(semaphore)[:2] == [1, 1]


def test_what_an_older_version_granted_counts(semaphore: Scripts) -> None:
    """It released one holder and granted another: as many as before, but with other weights."""
    semaphore.granted("ann")
    semaphore.granted("ben")
    older.release(semaphore, "ann")
    older.grant(semaphore, "cat", permits=2)
    assert isinstance(semaphore.grant("dan", wait=False), Busy)
    assert semaphore.statistics().permits == 3


def test_what_an_older_version_released_can_be_had(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.granted("ben")
    older.release(semaphore, "ann")
    semaphore.granted("cat", permits=2)
    assert semaphore.statistics().permits == 3


@pytest.mark.parametrize("verb", ["release", "renew", "recheck", "resize", "resume", "statistics", "revoke"])
def test_every_verb_knows_what_an_older_version_did(semaphore: Scripts, verb: str) -> None:
    semaphore.granted("ann")
    older.grant(semaphore, "cat", permits=2)
    verbs: dict[str, Callable[[], object]] = {
        "release": lambda: semaphore.release("zoe"), "renew": lambda: semaphore.renew("ann"),
        "recheck": semaphore.recheck, "resize": lambda: semaphore.resize(3), "resume": lambda: semaphore.pause(0),
        "revoke": lambda: semaphore.revoke(1), "statistics": semaphore.statistics,
    }  # fmt: skip
    verbs[verb]()
    assert isinstance(semaphore.grant("dan", wait=False), Busy)


def test_a_holder_of_which_nothing_is_known_counts_as_the_largest_weight(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.redis.hdel(semaphore.key("meta"), token("ann"), "used")
    assert isinstance(semaphore.grant("ben", permits=2, wait=False), Busy)
    semaphore.granted("cat")


@on_server
def test_where_each_holder_has_one_permit_no_weight_is_read(backend: Redis) -> None:
    """To count anew is then one command, however many hold."""
    semaphore = Scripts(backend, "semaphore", limit=10_000)
    for number in range(3):
        semaphore.granted(f"h{number}h")
    semaphore.redis.hdel(semaphore.key("meta"), "used")
    assert _cost(semaphore, lambda: semaphore.renew("h0h"))["hmget"] == 1
    assert _kept(semaphore)[:2] == [3, 3]


def test_holders_whose_hash_was_deleted_count_as_all_there_is(full: Scripts) -> None:
    full.redis.delete(full.key("meta"))
    assert isinstance(full.grant("ben", wait=False), Busy)
    assert full.statistics().limit == 3
    full.release("ann", permits=3)
    full.granted("cat", permits=3)


def test_holders_of_a_deleted_hash_count_fully_though_a_smaller_limit_was_set_meanwhile(semaphore: Scripts) -> None:
    """Whoever declared it first knew of a smaller one than that under which they were granted."""
    semaphore.resize(4)
    semaphore.granted("ann", permits=3)
    semaphore.granted("ben")
    semaphore.redis.delete(semaphore.key("meta"))
    assert isinstance(semaphore.grant("cat", wait=False, limit=2), Busy)
    semaphore.resize(4)
    semaphore.release("ben")
    assert isinstance(semaphore.grant("dan", permits=2, wait=False), Busy)
    semaphore.release("ann", permits=3)
    semaphore.granted("dan", permits=4)
    assert semaphore.statistics().permits == 4


@pytest.mark.parametrize("weights", [[2, 1], [1, 1], [12, 9, 1], [3]])
@pytest.mark.parametrize("limit", [1, 100])
def test_counting_again_finds_every_permit(backend: Redis, weights: list[int], limit: int) -> None:
    """Also under a limit that was lowered since."""
    semaphore = Scripts(backend, "semaphore", limit=30)
    for number, permits in enumerate(weights):
        semaphore.granted(f"w{number}w", permits=permits)
    semaphore.resize(limit)
    semaphore.redis.hdel(semaphore.key("meta"), "used")
    assert semaphore.statistics().permits == sum(weights)
    for number, permits in enumerate(weights):
        semaphore.release(f"w{number}w", permits=permits)
    semaphore.granted("ann", permits=limit)


def test_thousands_of_permits_are_counted_again_one_by_one(semaphore: Scripts) -> None:
    _hold(semaphore, 1_100, 2, counted=False)
    semaphore.resize(3_000)
    semaphore.redis.hset(semaphore.key("meta"), token("h7h"), "5 7")
    assert semaphore.statistics().permits == 2_203


def test_counting_again_forgets_nothing_of_the_longest_lease(semaphore: Scripts) -> None:
    """A lease from before the clock stepped back may last as long as any that was granted."""
    semaphore.granted("ann", ttl_ms=3 * TTL)
    semaphore.granted("ben", permits=2)
    semaphore.redis.pexpire(semaphore.keys.base, TTL)
    semaphore.redis.hdel(semaphore.key("meta"), "used")
    semaphore.renew("ben")
    semaphore.redis.zadd(semaphore.keys.base, {token("ben"): now_us(semaphore) // 1_000 + 3_600_000})
    semaphore.queued("cat")
    assert 2 * TTL < holders(semaphore)["ben"] <= 3 * TTL


@pytest.mark.parametrize("exclusive", ["semaphore", "rwlock"], indirect=True)
@pytest.mark.parametrize("renewed", [TTL // 2, 2 * TTL])
def test_no_lease_is_shortened_after_the_hash_was_deleted(exclusive: Scripts, renewed: int) -> None:
    """P3: how long the longest may last is not known any more, and what another asks for says nothing of it."""
    share = 1 if exclusive.kind == "semaphore" else SHARED
    for who, ttl_ms in (("ann", 10 * TTL), ("ben", TTL)):
        exclusive.granted(who, ttl_ms=ttl_ms, permits=share, limit=2)
    exclusive.redis.delete(exclusive.key("meta"))
    for _ in range(2):
        exclusive.renew("ben", renewed)
        assert isinstance(exclusive.grant("zoe", limit=2, wait=False), Busy)
        assert holders(exclusive)["ann"] > 9 * TTL
        assert holders(exclusive)["ben"] > renewed // 2


def test_no_one_comes_beside_a_holder_of_whom_nothing_is_known_though_another_asks_again(semaphore: Scripts) -> None:
    """P9: it counts as all there is, until it asks again as well."""
    semaphore.resize(10)
    semaphore.granted("ann", permits=2)
    semaphore.granted("ben", permits=8)
    semaphore.redis.delete(semaphore.key("meta"))
    semaphore.granted("ann", permits=2, limit=10)
    assert isinstance(semaphore.grant("cat", permits=6, limit=10, wait=False), Busy)
    semaphore.granted("ben", permits=8, limit=10)
    assert semaphore.statistics().permits == 10
    semaphore.release("ben", permits=8)
    semaphore.granted("cat", permits=8)


@pytest.mark.parametrize("exclusive", ["semaphore", "rwlock"], indirect=True)
def test_the_set_that_redis_removed_takes_neither_limit_nor_fencing_token_along(exclusive: Scripts) -> None:
    """All leases ran out together, and whatever comes next drops what was known of their holders."""
    if exclusive.kind == "semaphore":
        exclusive.resize(5)
    exclusive.granted("ann")
    set_last_fence(exclusive, FAR)
    exclusive.redis.delete(exclusive.keys.base)
    counted = exclusive.statistics()
    assert (counted.permits, counted.holders, counted.fence) == (0, 0, FAR)
    assert counted.limit == (5 if exclusive.kind == "semaphore" else 0)
    assert DAY_MS - 60_000 < pttl(exclusive, exclusive.key("meta")) <= DAY_MS
    assert exclusive.granted("ben").fence == FAR + 1
    assert exclusive.statistics().permits == 1


def test_what_is_left_of_a_set_that_ran_out_lasts_twice_as_long_as_its_longest_lease(semaphore: Scripts) -> None:
    """A clock that stepped back may make that lease last for as long again, and its fencing token must be known."""
    semaphore.granted("ann", ttl_ms=3 * DAY_MS)
    semaphore.redis.delete(semaphore.keys.base)
    assert semaphore.statistics().holders == 0
    assert 6 * DAY_MS - 60_000 < pttl(semaphore, semaphore.key("meta")) <= 6 * DAY_MS


@on_server
def test_a_lease_that_ran_out_costs_the_same_however_many_hold(backend: Redis) -> None:
    """W21: what it had is subtracted, and nobody else is asked about."""
    costs = []
    for size in (10, 1_100):
        semaphore = Scripts(backend, "semaphore", limit=10_000)
        backend.flushall()
        _hold(semaphore, size, 2)
        semaphore.resize(10_000)
        semaphore.granted("ann")
        lapse(semaphore, "h3h")
        costs.append(_cost(semaphore, lambda semaphore=semaphore: semaphore.renew("ann")))  # type: ignore[misc]
    assert costs[0] == costs[1]


@on_server
def test_an_acquire_and_a_release_cost_the_same_after_all_that_makes_others_count_again(backend: Redis) -> None:
    """Leases that ran out, a queue that has gone, another limit that is only mentioned."""
    semaphore = Scripts(backend, "semaphore", limit=3)

    def pair() -> None:
        semaphore.granted("ann", limit=9)
        semaphore.release("ann")

    semaphore.granted("zoe", ttl_ms=2 * TTL)
    semaphore.granted("ben", permits=2)
    semaphore.queued("cat")
    lapse(semaphore, "ben")
    semaphore.recheck("cat")
    semaphore.release("cat")
    pair()
    assert min(_cost(semaphore, pair).total() for _ in range(3)) <= 10
