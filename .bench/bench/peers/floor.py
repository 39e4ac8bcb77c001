"""The least that a lock on Redis can cost through redis-py's plain client: SET NX PX, and a script that compares and
deletes. No lease is watched, no order kept; a caller that finds it taken asks again after 10 ms.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Never

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from bench.peers import SAFETY, Turn
from bench.peers.pools import client_of

_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_ASK_AGAIN = 0.01


class _Client:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._release: AsyncScript = redis.register_script(_RELEASE)

    def lock(self, name: str, ttl: float = SAFETY, **options: Never) -> Turn:
        ttl_ms = round(1000 * ttl)

        async def acquire() -> bytes:
            token = os.urandom(16)
            while not await self._redis.set(name, token, nx=True, px=ttl_ms):
                await asyncio.sleep(_ASK_AGAIN)
            return token

        return Turn(acquire, lambda token: self._release(keys=(name,), args=(token,)))

    def semaphore(self, name: str, limit: int) -> Turn:
        raise NotImplementedError


@asynccontextmanager
async def connect(url: str, connections: int | None) -> AsyncIterator[_Client]:
    async with client_of(url, connections) as redis:
        yield _Client(redis)
