"""coredis's Lock on coredis's own client, whose pool has 64 connections by default.

One object per task, as in redis-py.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Never

import coredis
from coredis.patterns.lock import Lock

from bench.peers import SAFETY, Turn


class _Client:
    def __init__(self, redis: Any) -> None:
        self._redis = redis

    def lock(self, name: str, ttl: float = SAFETY, **options: Never) -> Turn:
        lock = Lock(self._redis, name, timeout=ttl)
        return Turn(lock.acquire, lambda _: lock.release(), block=lambda: lock)

    def semaphore(self, name: str, limit: int) -> Turn:
        raise NotImplementedError


@asynccontextmanager
async def connect(url: str, connections: int | None) -> AsyncIterator[_Client]:
    async with coredis.Redis.from_url(url, max_connections=connections) as redis:
        yield _Client(redis)
