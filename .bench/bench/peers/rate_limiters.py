"""async-redis-rate-limiters: a semaphore, and with a limit of one a lock. Its tasks queue within a process first.

The manager is shared and each acquisition has an object of its own, as its documentation demands. It splits its
connections between a pool for acquiring and one for releasing; 300 by default.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Never

from async_redis_rate_limiters import DistributedSemaphoreManager

from bench.peers import SAFETY, Turn


class _Client:
    def __init__(self, url: str, connections: int | None) -> None:
        self._url = url
        self._options = {} if connections is None else {"redis_max_connections": connections}
        self._managers: dict[float, Any] = {}

    def lock(self, name: str, ttl: float = SAFETY, **options: Never) -> Turn:
        return self._turn(name, 1, ttl)

    def semaphore(self, name: str, limit: int) -> Turn:
        return self._turn(name, limit, SAFETY)

    def _turn(self, name: str, limit: int, ttl: float) -> Turn:
        manager = self._managers.get(ttl)
        if manager is None:
            manager = DistributedSemaphoreManager(redis_url=self._url, redis_ttl=round(ttl), **self._options)
            self._managers[ttl] = manager

        async def acquire() -> Any:
            semaphore = manager.get_semaphore(name, limit)
            await semaphore.__aenter__()
            return semaphore

        return Turn(acquire, lambda semaphore: semaphore.__aexit__(None, None, None))


@asynccontextmanager
async def connect(url: str, connections: int | None) -> AsyncIterator[_Client]:
    yield _Client(url, connections)  # it has no way to be closed
