"""redis-py's client with the pool that a case asks for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff


def retrying() -> Retry:
    """Return the retries that send a command again when its connection broke, as `Redis()` does by default.

    `Redis.from_url` does not retry by default. The default pause of a second or more would say nothing about locks.
    """
    return Retry(ConstantBackoff(0.01), 3)


@asynccontextmanager
async def client_of(url: str, connections: int | None, **options: Any) -> AsyncIterator[Redis]:
    """Yield a client whose pool waits for a free one of *connections*; None: redis-py's default client."""
    if connections is None:
        async with Redis.from_url(url, retry=retrying(), **options) as redis:
            yield redis
    else:
        pool = BlockingConnectionPool.from_url(url, max_connections=connections, timeout=None, **options)
        async with Redis.from_pool(pool) as redis:
            yield redis
