"""The rate limiters that are compared. Each is made as its documentation says, and taken a start of by one await."""

import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

Start = Callable[[], Awaitable[Any]]
"""Waits for a start, or asks for one where the library cannot wait."""

LIMIT, PER = 100_000, 1.0
"""More starts than any library here can make, so that none has to wait."""


@asynccontextmanager
async def _own(url: str) -> AsyncIterator[Start]:
    from redis.asyncio import Redis

    from aiolocks import RateLimiter

    async with Redis.from_url(url) as redis:
        yield RateLimiter(redis, "bench", LIMIT, per=PER).acquire


@asynccontextmanager
async def _limits(url: str) -> AsyncIterator[Start]:
    from limits import RateLimitItemPerSecond
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import MovingWindowRateLimiter

    limiter = MovingWindowRateLimiter(RedisStorage(f"async+{url}", implementation="redispy"))
    item = RateLimitItemPerSecond(LIMIT)

    async def hit() -> None:
        assert await limiter.hit(item, "bench")

    yield hit


@asynccontextmanager
async def _aiolimiter(url: str) -> AsyncIterator[Start]:
    from aiolimiter import AsyncLimiter

    yield AsyncLimiter(LIMIT, PER).acquire


OWN = "aiolocks RateLimiter"
LIMITERS: Mapping[str, tuple[str, Callable[[str], AbstractAsyncContextManager[Start]]]] = {
    OWN: ("aiolocks", _own),
    "limits, moving window (asks once)": ("limits", _limits),
    "aiolimiter (one process, no server)": ("aiolimiter", _aiolimiter),
}
"""By name: the package, and how to connect."""


def installed(limiter: str) -> bool:
    return importlib.util.find_spec(LIMITERS[limiter][0]) is not None
