"""Waiting awake, for replies that come soon, ends soon: whoever has to wait for long sleeps."""

import asyncio
import time

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from aiolocks import AcquireTimeoutError, Lock, _vigil
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]

WAIT = 1.0


async def _make_haste(client: Redis) -> None:
    """Have replies come soon, one after the other."""
    lock = Lock(client, "hasty")
    for _ in range(100):
        async with lock:
            pass


async def _processor_time_of_waiting(lock: Lock) -> float:
    before = time.process_time()
    with pytest.raises((AcquireTimeoutError, RedisError)):
        await lock.acquire(timeout=WAIT)
    return time.process_time() - before


async def test_a_waiter_sleeps_while_the_server_is_silent(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_vigil, "_LATELY", 60.0)  # stopping the server takes longer than that lasts
    async with Redis.from_url(own_server.url) as client:
        await _make_haste(client)
        own_server.pause()
        try:
            took = await _processor_time_of_waiting(Lock(client, "silent"))
        finally:
            own_server.resume()
    assert took < WAIT / 4


async def test_a_waiter_sleeps_while_another_holds(own_server: RedisServer) -> None:
    async with Redis.from_url(own_server.url) as client:
        await _make_haste(client)
        async with Lock(client, "held"):
            waiting = asyncio.create_task(_processor_time_of_waiting(Lock(client, "held")))
            assert await waiting < WAIT / 4
