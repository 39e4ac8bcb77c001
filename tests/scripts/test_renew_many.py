"""`renew_many` extends each of many leases as `renew` would, or leaves it to that; one does no other any harm (W21)."""

import pytest

from tests.scripts.calls import TTL, Scripts, on_server
from tests.scripts.states import configured, holders, now_us, pttl

SHORT = 5_000
MOST = 100


def _several(scripts: Scripts, count: int = 5) -> list[Scripts]:
    """Return names that ann holds, of which little is left."""
    several = [scripts.named(f"order {number}") for number in range(count)]
    for one in several:
        one.granted("ann", ttl_ms=TTL)
        _shorten(one)
    return several


def _shorten(scripts: Scripts) -> None:
    """Let some of the lease pass."""
    scripts.redis.pexpire(scripts.keys.base, SHORT)
    if scripts.kind != "lock":
        for member, score in scripts.redis.zrange(scripts.keys.base, 0, -1, withscores=True):
            scripts.redis.zadd(scripts.keys.base, {member: score - TTL + SHORT})


def _left(scripts: Scripts, holder: str = "ann") -> int:
    return holders(scripts)[holder]


def test_every_lease_is_extended_for_its_holder(exclusive: Scripts) -> None:
    several = _several(exclusive, MOST)
    began = now_us(exclusive) // 1_000
    assert all(exclusive.renew_many(*((one, "ann", TTL) for one in several)))
    for one in several:  # reading so many can take seconds, which are not counted
        assert _left(one) + now_us(one) // 1_000 - began > TTL - 2_000
        assert _left(one) <= TTL
        assert pttl(one, one.keys.base) + now_us(one) // 1_000 - began > TTL - 2_000


def test_none_is_shortened(exclusive: Scripts) -> None:
    first, second, *_ = _several(exclusive)
    assert first.renew("ann", TTL)
    assert exclusive.renew_many((first, "ann", SHORT), (second, "ann", TTL)) == [True, True]
    assert _left(first) > TTL - 2_000


@pytest.mark.parametrize("stranger", ["ben", "an", "annn"])
def test_another_s_lease_is_not_extended_and_the_others_are(exclusive: Scripts, stranger: str) -> None:
    first, second, third, *_ = _several(exclusive)
    second.queued("ben")
    asked = [(first, "ann", TTL), (second, stranger, TTL), (third, "ann", TTL)]
    assert exclusive.renew_many(*asked) == [True, False, True]
    assert list(holders(second)) == ["ann"]
    assert _left(second) <= SHORT
    assert min(_left(first), _left(third)) > TTL - 2_000


def test_a_key_of_another_type_is_left_as_it_is_and_the_others_are_renewed(exclusive: Scripts) -> None:
    first, second, third, *_ = _several(exclusive)
    second.redis.delete(second.keys.base)
    second.redis.rpush(second.keys.base, "somebody else's")
    asked = [(first, "ann", TTL), (second, "ann", TTL), (third, "ann", TTL)]
    assert exclusive.renew_many(*asked) == [True, False, True]
    assert second.redis.lrange(second.keys.base, 0, -1) == [b"somebody else's"]
    assert min(_left(first), _left(third)) > TTL - 2_000


def test_what_is_known_of_the_holders_may_be_of_another_type(semaphore: Scripts) -> None:
    first, second, third, *_ = _several(semaphore)
    second.redis.delete(second.key("meta"))
    second.redis.rpush(second.key("meta"), "somebody else's")
    asked = [(first, "ann", TTL), (second, "ann", TTL), (third, "ann", TTL)]
    assert semaphore.renew_many(*asked) == [True, False, True]


@on_server
def test_at_the_memory_limit_all_are_renewed(exclusive: Scripts) -> None:
    several = _several(exclusive)
    with configured(exclusive, maxmemory=1, maxmemory_policy="noeviction"):
        assert all(exclusive.renew_many(*((one, "ann", TTL) for one in several)))
    assert min(map(_left, several)) > TTL - 2_000


def test_a_lock_with_a_plain_token_is_renewed_with_many_and_stays_plain(lock: Scripts) -> None:
    lock.redis.set(lock.keys.base, b"ann".ljust(32, b"0"), px=SHORT)
    assert lock.renew_many((lock, "ann", TTL)) == [True]
    assert lock.redis.get(lock.keys.base) == b"ann".ljust(32, b"0")
    assert pttl(lock, lock.keys.base) > SHORT
