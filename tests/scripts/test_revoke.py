"""W16, `revoke`: which leases it hits, what it says of them, and what it leaves alone; the rest is in `test_marks`."""

import pytest
from redis import Redis

from aiolocks._core.modes import FRONT, UPGRADE, UPGRADEABLE
from tests.scripts.calls import TTL, Grant, Granted, Revoked, Scripts, Withdrawn, on_server, token, upgrade_of
from tests.scripts.states import configured, contents, fence_of, holders, lapse, line, pttl


@pytest.fixture
def held(exclusive: Scripts) -> Scripts:
    """Held by ann; ben waits in the session `home`."""
    exclusive.granted("ann", ttl_ms=5_000)
    exclusive.queued("ben")
    return exclusive


def _is_marked(scripts: Scripts, who: str) -> bool:
    return bool(scripts.run("renew", who=who, ttl_ms=1) == -1)


def test_what_is_revoked_stays_until_it_ends_and_no_one_is_granted_it_before(held: Scripts) -> None:
    before = pttl(held, held.keys.base)
    revoked = held.revoke(fence_of(held, "ann"))
    assert 4_000 < revoked.left_ms <= 5_000
    assert revoked.mine == []
    assert holders(held) == {"ann": pytest.approx(4_500, abs=500)}
    assert before - 1_000 < pttl(held, held.keys.base) <= before + 1
    assert line(held) == ["ben"]
    assert _is_marked(held, "ann")
    marked = contents(held)
    assert 0 < held.revoke(fence_of(held, "ann")).left_ms <= 5_000, "revoked again, it is what it was"
    assert contents(held) == marked


def test_once_released_there_is_nothing_left_and_the_next_is_not_hit(held: Scripts) -> None:
    fence = fence_of(held, "ann")
    held.revoke(fence)
    assert [grant.who for grant in held.release("ann").mine] == ["ben"]
    assert held.revoke(fence) == Revoked(0, [])
    assert held.revoke(0, fence) == Revoked(0, [])
    assert not _is_marked(held, "ben")


@pytest.mark.parametrize("force", [False, True])
def test_the_holder_is_told_the_first_reason(held: Scripts, force: bool) -> None:
    """A request that is sent again, and an operator who revokes it as well, change nothing."""
    fence = fence_of(held, "ann")
    for reason in ("deploy 1.7", "deploy 1.7", "", "another"):
        held.revoke(fence, reason=reason)
    held.revoke(fence, reason="deploy 1.7", force=force)
    assert held.run("renew", who="ann", ttl_ms=1) == b"Rdeploy 1.7"
    assert held.hand_off("ann") in ((0,) if force else (b"Rdeploy 1.7",))
    key = held.keys.part(b"r:") + token("ann")
    assert 50_000 < pttl(held, key) <= 60_000, "it is residue"
    assert held.run("renew", who="ben", ttl_ms=1) == (1 if force else 0)


@on_server
def test_at_the_memory_limit_it_is_revoked_without_a_reason(held: Scripts) -> None:
    """W9: the mark comes first; what is allowed behind it, the server says."""
    fence = fence_of(held, "ann")
    with configured(held, maxmemory=1, maxmemory_policy="noeviction"):
        held.revoke(fence, reason="deploy 1.7")
        assert held.run("renew", who="ann", ttl_ms=1) in (-1, b"Rdeploy 1.7")


def test_a_lease_of_a_set_that_is_revoked_with_others_has_its_reason(backend: Redis) -> None:
    semaphore = Scripts(backend, "semaphore", limit=9)
    fences = [semaphore.granted(who).fence for who in ("ann", "ben", "cat")]
    semaphore.revoke(fences[0], fences[1], reason="deploy 1.7")
    assert [semaphore.run("renew", who=who, ttl_ms=1) for who in ("ann", "ben", "cat")] == [b"Rdeploy 1.7"] * 2 + [1]


def test_another_fencing_token_hits_no_one(held: Scripts) -> None:
    fence = fence_of(held, "ann")
    before = contents(held)
    assert held.revoke(0, fence - 1) == held.revoke(fence + 1, 2**53 - 1) == Revoked(0, [])
    assert contents(held) == before


def test_a_revoke_marks_leases_from_the_first_to_the_last_fencing_token(backend: Redis) -> None:
    semaphore = Scripts(backend, "semaphore", limit=9)
    fences = [semaphore.granted(who).fence for who in ("ann", "ben", "cat", "dan")]
    assert semaphore.revoke(fences[1], fences[2]).left_ms > 0
    assert [_is_marked(semaphore, who) for who in ("ann", "ben", "cat", "dan")] == [False, True, True, False]
    assert semaphore.revoke(0, fences[0]).left_ms > 0
    assert [_is_marked(semaphore, who) for who in ("ann", "ben", "cat", "dan")] == [True, True, True, False]


def test_a_revoke_says_how_long_the_last_revoked_lease_lasts(semaphore: Scripts) -> None:
    semaphore.granted("ann", ttl_ms=20_000)
    semaphore.granted("ben", ttl_ms=5_000)
    fence = fence_of(semaphore, "ben")
    assert 19_000 < semaphore.revoke(0, fence).left_ms <= 20_000
    assert 4_000 < semaphore.revoke(fence).left_ms <= 5_000


def test_a_revoke_of_a_free_name_hands_it_over(held: Scripts) -> None:
    """W7."""
    fence = fence_of(held, "ann")
    lapse(held, "ann")
    revoked = held.revoke(fence)
    assert revoked.left_ms == 0
    assert [grant.who for grant in revoked.mine] == ["ben"]


def test_one_may_only_look(held: Scripts) -> None:
    fence = fence_of(held, "ann")
    before = contents(held)
    seen = held.revoke(0, 2**53 - 1, look=True)
    assert seen.mine == []
    [(seen_fence, left_ms, share)] = seen.hit
    assert (seen_fence, share) == (fence, held.usual)
    assert 4_000 < left_ms <= 5_000
    assert contents(held) == before
    assert held.revoke(fence + 1, 2**53 - 1, look=True).hit == ()


def test_by_force_it_ends_at_once_and_the_next_has_it(held: Scripts) -> None:
    fence = fence_of(held, "ann")
    revoked = held.revoke(fence, force=True)
    assert revoked == Revoked(0, [Grant("ben", fence_of(held, "ben"), TTL)])
    assert fence_of(held, "ben") > fence
    assert held.run("renew", who="ann", ttl_ms=TTL) == -1, "its holder is told so"
    assert not held.release("ann").ended
    assert held.grant("ann") == Withdrawn()
    assert pttl(held, held.key("tombstone", who="ann")) > 50_000


def test_by_force_what_was_marked_ends_and_its_tombstone_lasts_as_long_as_it_might_have(exclusive: Scripts) -> None:
    fence = exclusive.granted("ann", ttl_ms=200_000).fence
    exclusive.revoke(fence)
    assert exclusive.revoke(fence, force=True).left_ms == 0
    assert holders(exclusive) == {}
    assert pttl(exclusive, exclusive.key("tombstone", who="ann")) > 190_000


@pytest.mark.parametrize("force", [True, False])
def test_what_has_grown_from_what_is_revoked_is_revoked_too(rwlock: Scripts, force: bool) -> None:
    rwlock.granted("ann", permits=UPGRADEABLE)
    rwlock.granted(upgrade_of("ann"), permits=UPGRADE, ticket=FRONT)
    revoked = rwlock.revoke(fence_of(rwlock, "ann"), force=force)
    if force:
        assert holders(rwlock) == {}
    else:
        assert revoked.left_ms > 0
        assert all(_is_marked(rwlock, who) for who in ("ann", upgrade_of("ann")))


def test_an_upgrade_is_revoked_by_itself_and_what_it_grew_from_is_not(rwlock: Scripts) -> None:
    rwlock.granted("ann", permits=UPGRADEABLE)
    rwlock.revoke(rwlock.granted(upgrade_of("ann"), permits=UPGRADE, ticket=FRONT).fence)
    assert [_is_marked(rwlock, who) for who in ("ann", upgrade_of("ann"))] == [False, True]


@pytest.mark.rest
@pytest.mark.parametrize("force", [True, False])
def test_one_script_looks_at_some_and_says_where_to_go_on(backend: Redis, force: bool) -> None:
    semaphore = Scripts(backend, "semaphore", limit=2_000)
    fences = [semaphore.granted(f"h{number}h", ttl_ms=TTL + number).fence for number in range(1_100)]
    asked, more = 0, ""
    while asked == 0 or more:
        revoked = semaphore.revoke(0, fences[-1], more=more, force=force)
        asked, more = asked + 1, revoked.more
    assert asked == 3
    if force:
        assert holders(semaphore) == {}
    else:
        assert all(_is_marked(semaphore, f"h{number}h") for number in range(0, 1_100, 53))


def test_a_revoke_looks_at_leases_that_end_at_the_same_time_together(backend: Redis) -> None:
    semaphore = Scripts(backend, "semaphore", limit=2_000)
    fences = [semaphore.granted(f"h{number}h").fence for number in range(700)]
    ends = semaphore.redis.zscore(semaphore.keys.base, token("h699h"))
    semaphore.redis.zadd(semaphore.keys.base, {token(f"h{number}h"): ends for number in range(100, 700)})
    assert semaphore.revoke(0, fences[-1]).more == f"({ends:.0f}"
    assert all(_is_marked(semaphore, f"h{number}h") for number in range(0, 700, 23))
    assert semaphore.revoke(0, fences[-1], more=f"({ends:.0f}") == Revoked(0, [])


@pytest.mark.parametrize("value", ["a text", "", "0123456789abcdef"])
def test_what_another_library_holds_cannot_be_marked_but_ended(lock: Scripts, value: str) -> None:
    lock.redis.set(lock.keys.base, value)
    assert lock.revoke(0, 10**15) == Revoked(-1, [])
    assert lock.revoke(1, 10**15) == Revoked(0, [])
    assert lock.redis.get(lock.keys.base) == value.encode()
    assert lock.revoke(0, 10**15, force=True) == Revoked(0, [])
    assert isinstance(lock.grant("ann"), Granted)


def test_a_lease_that_never_ends_is_marked_and_goes_on_without_an_end(lock: Scripts) -> None:
    lock.redis.set(lock.keys.base, token("ann") + b" 7")
    assert lock.revoke(7).left_ms > 0
    assert pttl(lock, lock.keys.base) == -1
    assert _is_marked(lock, "ann")


@pytest.mark.parametrize("kind", ["semaphore", "rwlock"])
def test_a_holder_of_whom_nothing_is_known_cannot_be_marked_but_ended(backend: Redis, kind: str) -> None:
    scripts = Scripts(backend, kind)  # type: ignore[arg-type]
    scripts.granted("ann")
    scripts.redis.delete(scripts.key("meta"))
    assert scripts.revoke(0, 10**15) == Revoked(-1, [])
    assert scripts.revoke(0, 10**15, force=True).left_ms == 0
    assert holders(scripts) == {}


@on_server
@pytest.mark.parametrize("force", [True, False])
def test_at_the_memory_limit_leases_are_revoked_all_the_same(held: Scripts, force: bool) -> None:
    """W9."""
    fence = fence_of(held, "ann")
    with configured(held, maxmemory=1, maxmemory_policy="noeviction"):
        revoked = held.revoke(fence, force=force)
        assert list(holders(held)) == (["ben"] if force else ["ann"])
        assert (revoked.left_ms > 0) is not force
    assert force or _is_marked(held, "ann")
