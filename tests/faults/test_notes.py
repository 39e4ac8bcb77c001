"""Trouble with Redis reaches a caller as redis-py's own error, with a note of what the caller was doing."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from aiolocks import Lock
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults, pytest.mark.leaves_residue]


async def notes_of(call: "asyncio.Future[Any]") -> list[str]:
    with pytest.raises((RedisError, OSError)) as caught:
        await call
    return getattr(caught.value, "__notes__", [])


async def test_each_of_many_callers_has_a_note_of_its_own(own_server: RedisServer) -> None:
    async with Redis.from_url(own_server.url, retry=Retry(NoBackoff(), 0)) as client:
        async with Lock(client, "orders:1"):
            pass
        own_server.kill()
        acquires = [asyncio.ensure_future(Lock(client, f"orders:{number}").acquire(timeout=1)) for number in range(3)]
        for number, acquire in enumerate(acquires):
            assert await notes_of(acquire) == [f"while acquiring lock 'orders:{number}'"]


async def test_a_release_and_questions_say_what_they_were_about(redis: Redis) -> None:
    lock = Lock(redis, "orders:42")
    lease = await lock.acquire()
    await redis.delete("aiolocks:lock:{orders:42}")
    await redis.rpush("aiolocks:lock:{orders:42}", "one")
    assert await notes_of(asyncio.ensure_future(lease.release())) == ["while releasing lock 'orders:42'"]
    for call in (lock.statistics(), lock.holders()):
        assert await notes_of(asyncio.ensure_future(call)) == ["while asking about lock 'orders:42'"]
    await redis.delete("aiolocks:lock:{orders:42}")
