"""pottery's AIORedlock with one master, so a quorum of one server.

One object per task, as the holder's id lives in it.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Never

from pottery import AIORedlock
from redis.asyncio import Redis

from tests.bench.peers import SAFETY, Turn
from tests.bench.peers.pools import client_of


class _Client:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def lock(self, name: str, ttl: float = SAFETY, **options: Never) -> Turn:
        lock = AIORedlock(key=name, masters={self._redis}, auto_release_time=ttl)
        return Turn(lock.acquire, lambda _: lock.release(), block=lambda: lock)

    def semaphore(self, name: str, limit: int) -> Turn:
        raise NotImplementedError


@asynccontextmanager
async def connect(url: str, connections: int | None) -> AsyncIterator[_Client]:
    logging.getLogger("pottery").setLevel(logging.CRITICAL)  # or the tracebacks that it logs are what is timed
    async with client_of(url, connections) as redis:
        yield _Client(redis)
