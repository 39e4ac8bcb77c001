"""The primitives that fault tests are run with, as they exclude: one holder at a time."""

import time
from typing import Literal

from redis.asyncio import Redis

from aiolocks import Lock, Semaphore

Kind = type[Lock] | type[Semaphore]


def make(
    kind: Kind, client: Redis, name: str, *, ttl: float, renew: bool = True,
    watchdog: Literal["task", "thread"] = "task",
) -> Lock | Semaphore:  # fmt: skip
    """Return a lock of that *kind*; a semaphore with one permit."""
    if kind is Lock:
        return Lock(client, name, ttl=ttl, renew=renew, watchdog=watchdog)
    return Semaphore(client, name, 1, ttl=ttl, renew=renew, watchdog=watchdog)


async def fresh_acquire(url: str, kind: Kind, name: str, *, ttl: float) -> float:
    """Have a client that is new acquire and release; return the seconds until it was granted."""
    async with Redis.from_url(url) as client:
        begun = time.monotonic()
        async with make(kind, client, name, ttl=ttl):
            return time.monotonic() - begun
