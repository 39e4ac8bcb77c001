"""redis-py's own Lock: one object per task, as its token lives in the object; its default of 0.1 s between attempts."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Never

from redis.asyncio import Redis

from bench.peers import SAFETY, Turn
from bench.peers.pools import client_of


class _Client:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def lock(self, name: str, ttl: float = SAFETY, **options: Never) -> Turn:
        lock = self._redis.lock(name, timeout=ttl)
        return Turn(lock.acquire, lambda _: lock.release(), block=lambda: lock)

    def semaphore(self, name: str, limit: int) -> Turn:
        raise NotImplementedError

    def maker(self, way: str) -> Callable[[str], AbstractAsyncContextManager[Any]]:
        return partial(self._redis.lock, timeout=SAFETY)


@asynccontextmanager
async def connect(url: str, connections: int | None) -> AsyncIterator[_Client]:
    async with client_of(url, connections) as redis:
        yield _Client(redis)
