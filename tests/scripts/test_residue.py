"""No key lives for ever, and after the last lease and waiter only residue is left.

That is: fence, meta, the newest ticket, tombstones.
"""

from collections.abc import Callable

import pytest

from aiolocks._core.modes import SHARED
from tests.scripts.calls import TTL, Scripts
from tests.scripts.states import keys, lapse, pttl


def _endless(scripts: Scripts) -> list[bytes]:
    return [key for key in keys(scripts) if pttl(scripts, key) == -1]


def _residue(scripts: Scripts, *buried: str) -> set[bytes]:
    kept = scripts.key("fence" if scripts.kind == "lock" else "meta")
    return {kept, *(scripts.key("tombstone", who=who) for who in buried)}


def test_releases_and_undone_requests_leave_residue_and_tombstones_that_end(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    exclusive.release("ann")
    assert set(keys(exclusive)) == _residue(exclusive)
    exclusive.granted("ann")
    exclusive.release("ann", tombstone_ms=60_000)
    exclusive.release("ben", tombstone_ms=60_000)
    assert set(keys(exclusive)) == _residue(exclusive, "ann", "ben")
    assert _endless(exclusive) == []


def test_the_residue_of_a_short_lease_outlives_it(exclusive: Scripts) -> None:
    exclusive.granted("ann", ttl_ms=100)
    [kept] = _residue(exclusive)
    assert pttl(exclusive, kept) > TTL


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
@pytest.mark.parametrize("exclusive", ["semaphore", "rwlock"], indirect=True)
def test_what_is_written_after_the_hash_was_deleted_ends_as_well(exclusive: Scripts, verb: str) -> None:
    exclusive.limit = 3
    exclusive.granted("ann")
    if exclusive.kind == "semaphore":
        exclusive.granted("ben", permits=2)
    exclusive.queued("dan")
    exclusive.redis.delete(exclusive.key("meta"))
    _AFTER[verb](exclusive)
    assert _endless(exclusive) == []
