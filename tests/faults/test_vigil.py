"""Waiting awake for replies that come soon: who does, who does not, and that it ends soon."""

import asyncio
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from aiolocks import Lock
from tests.support.inside import count_busy_turns, stay_awake_for
from tests.support.primitives import queued
from tests.support.servers import RedisServer

Turns = Callable[[], int]


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    """How often a loop was kept turning, as if all replies came soon on a machine of any size."""
    return count_busy_turns(monkeypatch)


async def _make_haste(client: Redis) -> None:
    """Have replies come soon, one after the other."""
    lock = Lock(client, "hasty")
    for _ in range(100):
        async with lock:
            pass


async def test_a_loop_that_acquires_or_releases_stays_awake_for_the_reply(
    server: RedisServer, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    stay_awake_for(monkeypatch, 10.0)
    async with Redis.from_url(server.url) as client:
        await _make_haste(client)
        before = turns()
        lease = await Lock(client, "mine").acquire()
        acquired = turns()
        await lease.release()
        assert before < acquired < turns()


async def test_a_joining_waiter_sleeps(server: RedisServer, turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    """It will wait for its turn, and that is not about to come."""
    stay_awake_for(monkeypatch, 10.0)
    async with Redis.from_url(server.url) as client:
        lock = Lock(client, "full")
        async with lock:
            first = asyncio.create_task(lock.acquire())
            await queued(lock, 1)
            before = turns()
            second = asyncio.create_task(lock.acquire())
            await queued(lock, 2)
            assert turns() == before
        for waiter in (first, second):
            await (await waiter).release()
