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


def _lapsed(scripts: Scripts) -> None:
    lapse(scripts, "ann")
    scripts.grant("cat", wait=False)


_AFTER: dict[str, Callable[[Scripts], object]] = {
    "renew": lambda scripts: scripts.renew("ann", 2 * TTL),
    "asked again": lambda scripts: scripts.grant("ann", ttl_ms=2 * TTL),
    "release": lambda scripts: scripts.release("ann"), "lapse": _lapsed,
    "downgrade": lambda scripts: scripts.kind == "rwlock" and scripts.downgrade("ann", SHARED),
    "re-check": lambda scripts: scripts.recheck("dan"), "withdraw": lambda scripts: scripts.release("zoe"),
    "revoke": lambda scripts: scripts.revoke(0, 10**16),
    "revoke by force": lambda scripts: scripts.revoke(0, 10**16, force=True),
}  # fmt: skip


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
