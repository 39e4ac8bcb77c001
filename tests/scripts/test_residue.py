"""No key lives for ever, and after the last lease and waiter only residue is left.

That is: fence, meta, the newest ticket, tombstones.
"""

import random
from collections.abc import Callable

import pytest
from redis import Redis

from aiolocks._core.modes import EXCLUSIVE, SHARED, UPGRADEABLE
from tests.scripts.calls import TTL, Scripts, entry
from tests.scripts.states import contents, die, holders, keys, lapse, listening, pttl, sessions
from tests.support.cases import the_rest_slow

pytest_plugins = ["tests.scripts.fixtures"]

_HOUR_MS = 3_600_000


@pytest.fixture(params=["lock", "semaphore", "rwlock"])
def shared(request: pytest.FixtureRequest, backend: Redis) -> Scripts:
    """A mutex, a semaphore of three permits, and a read-write lock."""
    return Scripts(backend, request.param, limit=3)


_AMOUNTS = {"lock": [1], "semaphore": [1, 2, 3], "rwlock": [SHARED, UPGRADEABLE, EXCLUSIVE]}
"""What one may ask for: permits, or modes."""


def _endless(scripts: Scripts) -> list[bytes]:
    return [key for key in keys(scripts) if pttl(scripts, key) == -1]


def _residue(scripts: Scripts, *buried: str) -> set[bytes]:
    kept = scripts.key("fence" if scripts.kind == "lock" else "meta")
    return {kept, *(scripts.key("tombstone", who=who) for who in buried)}


def test_a_lease_and_its_release_leave_residue_only(shared: Scripts) -> None:
    shared.granted("ann")
    shared.release("ann")
    assert set(keys(shared)) == _residue(shared)
    assert _endless(shared) == []


def test_waiters_that_give_up_leave_residue_only(shared: Scripts) -> None:
    shared.granted("ann", permits=max(_AMOUNTS[shared.kind]))
    shared.queued("ben")
    shared.queued("cat", session="away")
    shared.release("ben")
    shared.release("cat", session="away")
    shared.release("ann")
    assert set(keys(shared)) == {*_residue(shared), shared.key("highest")}
    assert 23 * _HOUR_MS < pttl(shared, shared.key("highest")) <= 24 * _HOUR_MS


def test_undone_requests_leave_tombstones_that_end(shared: Scripts) -> None:
    shared.granted("ann")
    shared.release("ann", tombstone_ms=60_000)
    shared.release("ben", tombstone_ms=60_000)
    assert set(keys(shared)) == _residue(shared, "ann", "ben")
    assert _endless(shared) == []


def test_the_meta_key_names_no_holder_when_the_name_is_free(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.granted("ben")
    semaphore.release("ann", permits=2)
    semaphore.release("ben")
    assert set(semaphore.redis.hkeys(semaphore.key("meta"))) == {b"limit", b"fence", b"weight", b"ttl"}


def test_the_residue_of_a_short_lease_outlives_it(shared: Scripts) -> None:
    shared.granted("ann", ttl_ms=100)
    [kept] = _residue(shared)
    assert pttl(shared, kept) > TTL


def _lapsed(scripts: Scripts) -> None:
    lapse(scripts, "ann")
    scripts.grant("cat", wait=False)


_AFTER: dict[str, Callable[[Scripts], object]] = {
    "renew": lambda scripts: scripts.renew("ann", 2 * TTL),
    "asked again": lambda scripts: scripts.grant("ann", ttl_ms=2 * TTL),
    "release": lambda scripts: scripts.release("ann"),
    "lapse": _lapsed,
    "downgrade": lambda scripts: scripts.kind == "rwlock" and scripts.downgrade("ann", SHARED),
    "re-check": lambda scripts: scripts.recheck("dan"),
    "withdraw": lambda scripts: scripts.release("zoe"),
    "revoke": lambda scripts: scripts.revoke(0, 10**16),
    "revoke by force": lambda scripts: scripts.revoke(0, 10**16, force=True),
}


@pytest.mark.parametrize("verb", _AFTER)
@pytest.mark.parametrize("shared", ["semaphore", "rwlock"], indirect=True)
def test_what_is_written_after_the_hash_was_deleted_ends_as_well(shared: Scripts, verb: str) -> None:
    shared.granted("ann")
    if shared.kind == "semaphore":
        shared.granted("ben", permits=2)
    shared.queued("dan")
    shared.redis.delete(shared.key("meta"))
    _AFTER[verb](shared)
    assert _endless(shared) == []


@pytest.mark.parametrize("seed", the_rest_slow(range(6), quick=1))
def test_any_traffic_leaves_residue_only_and_never_a_key_without_an_end(shared: Scripts, seed: int) -> None:
    """Sessions fall silent, cannot be reached, lose their places and leases, and ask for things twice."""
    chance = random.Random(seed)
    asked: dict[str, tuple[str, int]] = {}
    buried: list[str] = []
    with listening(shared, "s0"), listening(shared, "s1"):
        for step in range(120):
            session = f"s{chance.randrange(4)}"
            asked.setdefault(f"w{step}w", (session, chance.choice(_AMOUNTS[shared.kind])))
            who = chance.choice(list(asked)[-12:])
            home, permits = asked[who]
            match chance.randrange(9):
                case 0 | 1 | 2 | 3:
                    shared.grant(who, session=home, permits=permits, wait=chance.random() < 0.8)
                case 4 | 5:
                    buried += [who] if (bury := chance.random() < 0.2) else []
                    shared.release(who, session=home, permits=permits, tombstone_ms=60_000 * bury)
                case 6:
                    waiters = [entry(who, permits=asked[who][1]) for who in asked if asked[who][0] == session]
                    shared.recheck(*waiters, session=session)
                case 7:
                    die(shared, session)
                case _:
                    for holder in holders(shared):
                        lapse(shared, holder)
            assert _endless(shared) == [], f"step {step}"
        for who, (home, permits) in asked.items():
            shared.release(who, session=home, permits=permits)
        for holder in list(holders(shared)):
            shared.release(holder)
        while sessions(shared):
            shared.release("nobody")
    left = {key: value for key, value in contents(shared).items() if b":q:" not in key}
    assert set(left) <= {*_residue(shared, *buried), shared.key("highest")}
