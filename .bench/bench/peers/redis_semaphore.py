"""py-redis-semaphore: a semaphore and a mutex that wait by BLPOP, and so each block a connection while they wait.

One object per task, as the object remembers the holder. A waiter that gets no wake-up looks again after 5 s by default.
Here it looks at least once per lease, since a dead holder's lease is over by then. The client's socket timeout must be
longer. `strict_mode` is not the default, but "recommended for production": a holder that lost its lock gets an error.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Never

from redis.asyncio import Redis
from redis_semaphore import Mutex, Semaphore, SemaphoreConfig

from bench.peers import SAFETY, Turn
from bench.peers.pools import client_of

_LOOKS_AGAIN = 5.0
_SOCKET_TIMEOUT = 10.0


def _fence(result: Any) -> int:
    return int(result.fencing_token)


class _Client:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def lock(self, name: str, ttl: float = SAFETY, **options: Never) -> Turn:
        mutex = Mutex(self._redis, name, lock_timeout=ttl, blpop_timeout=min(_LOOKS_AGAIN, ttl), strict_mode=True)
        return Turn(mutex.aacquire, lambda _: mutex.arelease(), _fence, block=lambda: mutex)

    def semaphore(self, name: str, limit: int) -> Turn:
        semaphore = Semaphore(self._redis, SemaphoreConfig(name=name, limit=limit, lock_timeout=SAFETY))
        return Turn(semaphore.aacquire, lambda _: semaphore.arelease(), _fence)


@asynccontextmanager
async def connect(url: str, connections: int | None) -> AsyncIterator[_Client]:
    async with client_of(url, connections, socket_timeout=_SOCKET_TIMEOUT) as redis:
        yield _Client(redis)
