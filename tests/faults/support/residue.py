"""What the server still holds after a fault: polled until only residue is left, for a bounded time."""

import asyncio
import time

from redis.asyncio import Redis

from tests.support.lateness import assert_within, measured_lag
from tests.support.leftovers import is_residue

_POLL = 0.01


async def alive(redis: Redis) -> list[str]:
    """Return a line for each key that is not residue, and for each residue that has no expiry.

    Keys that begin with ``test:`` are the test's own.
    """
    found = []
    async for key in redis.scan_iter(count=1000):
        if key.startswith(b"test:"):
            continue
        ttl_ms = await redis.pttl(key)
        if ttl_ms == -2:
            continue  # expired meanwhile
        if not is_residue(key):
            found.append(f"{key!r} for {ttl_ms} ms")
        elif ttl_ms <= 0:
            found.append(f"{key!r} without expiry")
    return found


async def wait_until_only_residue(redis: Redis, within: float) -> float:
    """Return the seconds it took until nobody held or waited.

    Raises:
        AssertionError: Somebody still did after *within* seconds.
    """
    begun = time.monotonic()
    async with measured_lag() as lag:
        while found := await alive(redis):
            waited = time.monotonic() - begun
            assert_within(waited, within + lag.worst, f"still there after {waited:.2f} s: {found}")
            await asyncio.sleep(_POLL)
    return time.monotonic() - begun


async def connections(redis: Redis) -> list[str]:
    """Return the ids of all connections to the server but the asking one."""
    own = await redis.client_id()
    return [client["id"] for client in await redis.client_list() if client["id"] != str(own)]
