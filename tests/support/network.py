"""What tests of connections say often: a client that never retries, a raw command, a bounded wait."""

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aiolocks.testing import FaultProxy
from tests.support.lateness import bounded

_PATIENCE = 15.0
"""Seconds after which nothing comes any more, however busy the machine is."""


def client_of(proxy: FaultProxy, **options: Any) -> Redis:
    """Return a client that never retries, so that each fault is seen."""
    return Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0), **options)


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


async def until(condition: Callable[[], bool]) -> None:
    async with bounded(_PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


async def until_exists(redis: Redis, key: str) -> None:
    async with bounded(_PATIENCE):
        while not await redis.exists(key):
            await asyncio.sleep(0.002)
