"""Ways to ask, and what came of it and when."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal, final, get_args

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import Lock, Semaphore
from aiolocks.testing import FaultProxy

Loss = Literal["reset", "black_hole"]
"""What becomes of the connection whose message is lost."""

either_loss = pytest.mark.parametrize("how", get_args(Loss))

UNREACHABLE = (RedisConnectionError, RedisTimeoutError)
"""What redis-py raises when it gets no answer."""


def retrying(proxy: FaultProxy) -> Redis:
    """Return a client through *proxy* with redis-py's default retries, which `Redis.from_url` does not set."""
    return Redis(host="127.0.0.1", port=proxy.port)


async def outcome_of(asking: Callable[[], Awaitable[object]]) -> tuple[object, float]:
    """Return what came of it, an exception too, and the seconds that it took."""
    begun = time.monotonic()
    result: object
    try:
        result = await asking()
    except Exception as error:
        result = error
    return result, time.monotonic() - begun


async def granted_at(acquirable: Lock | Semaphore) -> float:
    """Wait for it, let it go, and return when it was granted."""
    lease = await acquirable.acquire()
    now = time.monotonic()
    await lease.release()
    return now


@final
class Body:
    """Works in a block, and knows when it was stopped."""

    def __init__(self) -> None:
        self.ended_at = 0.0

    async def work(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            self.ended_at = time.monotonic()


async def wait_until_listening(redis: Redis, sessions: int) -> None:
    """Wait until so many sessions can be woken."""
    async with asyncio.timeout(15):
        while len(await redis.pubsub_channels("aiolocks:wake:*")) != sessions:
            await asyncio.sleep(0.005)
