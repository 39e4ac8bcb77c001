"""`min_uptime`: a server that was started a moment ago grants nothing to those who ask for more, and says how long."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lease, QuorumError, Redlock
from tests.support.primitives import EVERY_ROW, Row
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis

EVER = 10**6
"""Seconds of uptime that no server of a test has."""

SLACK = 5.0
"""Seconds that a busy machine may take for what is not awaited but done."""

with_a_queue = pytest.mark.parametrize("row", [row for row in EVERY_ROW if row.queue], ids=str)


@pytest_asyncio.fixture
async def client(one_server: RedisServer, quick_sessions: None) -> AsyncIterator[Redis]:
    """A client of the session's server. (With a Cluster, asking for an uptime is an error.)"""
    async with Redis.from_url(one_server.url) as made:
        yield made


async def uptime(client: Redis) -> int:
    return int((await client.info("server"))["uptime_in_seconds"])


@pytest.mark.rest
@pytest.mark.parametrize("row", EVERY_ROW, ids=str)
async def test_a_lock_is_granted_once_the_server_is_old_enough(servers: Callable[..., RedisServer], row: Row) -> None:
    started = time.monotonic()
    young = servers()
    async with Redis.from_url(young.url) as client:
        lock = row.make(client, "orders", min_uptime=1)
        if row.queue:
            lease = await lock.acquire(timeout=20)
        else:
            lease = await insistently(lock)
        assert time.monotonic() - started > 1
        assert await uptime(client) >= 2
        assert await lease.release()
        again = await lock.try_acquire()
        assert again is not None
        assert await again.renew()
        assert await again.release()
        async with lock as held:
            assert held.held


async def insistently(lock: Any) -> Lease:
    """Acquire a lock of several servers, where too few have a vote at first."""
    async with asyncio.timeout(20):
        while True:
            try:
                lease: Lease = await lock.acquire()
            except QuorumError:
                continue
            return lease


@with_a_queue
async def test_before_min_uptime_asking_once_gets_nothing_and_a_time_out_says_how_long(client: Redis, row: Row) -> None:
    lock = row.make(client, "orders", min_uptime=EVER)
    before = await uptime(client)
    assert await lock.try_acquire() is None
    for timeout in (0, 0.3):
        with pytest.raises(AcquireTimeoutError, match="or its server restarted too short a time ago") as caught:
            await lock.acquire(timeout=timeout)
        assert caught.value.retry_after is not None
        assert before - SLACK < EVER + 1 - caught.value.retry_after <= before + SLACK
    now = await row.make(client, "orders").statistics()
    assert (now.holders, now.waiting) == (0, 0)


# A quorum.


@pytest.fixture
def three(servers: Callable[..., RedisServer]) -> list[RedisServer]:
    return [servers() for _ in range(3)]


@pytest_asyncio.fixture
async def clients(three: list[RedisServer], quick_sessions: None) -> AsyncIterator[list[Redis]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Redis.from_url(server.tcp_url)) for server in three]


@pytest.mark.rest
@pytest.mark.parametrize("timeout", [0, 0.4, None])
async def test_servers_that_are_too_young_count_as_not_answered(clients: list[Redis], timeout: float | None) -> None:
    lock = Redlock(clients, "orders", min_uptime=EVER)
    with pytest.raises(QuorumError, match="0 of 3 servers answered in time") as caught:
        await lock.acquire(timeout=timeout)
    assert all("restarted too short a time ago" in outcome for outcome in caught.value.outcomes.values())
    assert not await lock.locked()


@pytest.mark.rest
async def test_a_majority_that_is_old_enough_decides(three: list[RedisServer], clients: list[Redis]) -> None:
    lock = Redlock(clients, "orders", ttl=5, min_uptime=1)
    await (await insistently(lock)).release()
    three[0].restart()
    async with lock as lease:
        assert lease.held
    three[1].restart()
    with pytest.raises(QuorumError, match="1 of 3 servers answered in time"):
        await lock.acquire(timeout=0.4)
