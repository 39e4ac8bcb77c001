"""redis-fifo-lock: a FIFO lock whose waiters each block a connection of the pool.

A waiter that gets no wake-up asks again after 30 s by default. Here it asks at least once per lease, since a dead
holder's lease is over by then.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Never

from redis.asyncio import Redis
from redis_fifo_lock import FifoLock
from redis_fifo_lock.lock import DEFAULT_POLL_MS

from bench.peers import SAFETY, Turn
from bench.peers.pools import client_of


def _fence(lease: Any) -> int:
    return int(lease.fence)


class _Client:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._locks: dict[str, FifoLock] = {}

    def lock(self, name: str, ttl: float = SAFETY, **options: Never) -> Turn:
        lease_ms = round(1000 * ttl)
        lock = self._locks.get(name)  # its tasks may share one
        if lock is None:
            lock = self._locks[name] = FifoLock(
                self._redis, name, lease_ms=lease_ms, poll_ms=min(lease_ms, DEFAULT_POLL_MS)
            )
        return Turn(lock.acquire, lock.release, _fence, lock._release.sha.encode(), lock.hold)

    def semaphore(self, name: str, limit: int) -> Turn:
        raise NotImplementedError


@asynccontextmanager
async def connect(url: str, connections: int | None) -> AsyncIterator[_Client]:
    async with client_of(url, connections) as redis:
        yield _Client(redis)
