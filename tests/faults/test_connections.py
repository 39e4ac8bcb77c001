"""Connections that are killed, scripts and data that are flushed, more tasks than connections: the locks go on."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Semaphore
from tests.faults.support.kinds import Kind, make
from tests.faults.support.residue import connections, wait_until_only_residue
from tests.faults.support.turns import Turns, turns
from tests.support.inside import pool_connections
from tests.support.lateness import SLACK, assert_within, bounded, kept
from tests.support.servers import RedisServer


async def repeatedly(act: Callable[[], Awaitable[object]], pause: float, seconds: float) -> int:
    """Do it again and again; return how often."""
    ends_at = time.monotonic() + seconds
    count = 0
    while time.monotonic() < ends_at:
        await act()
        count += 1
        await asyncio.sleep(pause)
    return count


@pytest.mark.parametrize("which", ["normal", "pubsub"])
async def test_locks_go_on_as_connections_end_every_50_ms(redis: Redis, server: RedisServer, which: str) -> None:
    """F11: CLIENT KILL of one type and the other."""
    run: Any = redis.execute_command
    async with Redis(unix_socket_path=server.socket_path) as one, Redis(unix_socket_path=server.socket_path) as other:
        async with kept(1), Lock(one, "held all the time", ttl=1) as lease:
            async with bustle(one, other) as (locks, permits):
                kills = await repeatedly(lambda: run("CLIENT", "KILL", "TYPE", which, "SKIPME", "yes"), 0.05, seconds=3)
                lease.check()
                healed_at = time.monotonic()
            healed_after = time.monotonic() - healed_at
        assert (locks.most, permits.most) == (1, 2)
        await wait_until_only_residue(redis, within=2.0)
    assert locks.count + permits.count > kills
    assert_within(healed_after, 1.0 + SLACK * 0.2)


@asynccontextmanager
async def bustle(*clients: Redis) -> AsyncIterator[tuple[Turns, Turns]]:
    """Have locks and permits taken in turns."""
    async with (
        turns([Lock(client, "bustle", ttl=9) for client in clients], tasks=4) as locks,
        turns([Semaphore(client, "bustle", 2, ttl=9) for client in clients], tasks=4) as permits,
    ):
        yield locks, permits


async def test_no_noscript_reaches_a_caller_while_scripts_are_flushed_in_a_loop(redis: Redis, redis_url: str) -> None:
    """F12: every verb of both kinds."""
    async with Redis.from_url(redis_url) as one, Redis.from_url(redis_url) as other:
        async with Lock(one, "renewed by hand", ttl=2) as lease:

            async def flush_and_renew() -> None:
                await redis.script_flush()
                assert await lease.renew()
                await redis.script_flush()
                await Semaphore(other, "resized", 2).resize(random.randint(1, 5))

            flushes = 0
            async with bustle(one, other) as (locks, permits), asyncio.timeout(30):
                while locks.count + permits.count <= 100 or flushes < 50:
                    flushes += await repeatedly(flush_and_renew, 0.001, seconds=0.2)
    assert (locks.most, permits.most) == (1, 2)
    await wait_until_only_residue(redis, within=2.0)


async def test_a_thousand_tasks_on_one_default_client_need_few_connections(redis: Redis, server: RedisServer) -> None:
    before = len(await connections(redis))
    most = 0
    async with Redis(unix_socket_path=server.socket_path) as client:
        semaphore = Semaphore(client, "narrow", 50)

        async def work(number: int) -> None:
            async with Lock(client, f"own-{number}"), semaphore:
                await asyncio.sleep(0.001)

        work_of_all = asyncio.gather(*(work(number) for number in range(1_000)))
        while not work_of_all.done():
            most = max(most, len(await connections(redis)) - before)
            await asyncio.sleep(0.02)
        await work_of_all
    assert most == 2, "one for commands and one for wake-ups"


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_closing_the_client_while_a_lease_is_held_neither_ends_it_nor_reopens_the_pool(
    redis: Redis, redis_url: str, kind: Kind
) -> None:
    ttl = 0.6
    client = Redis.from_url(redis_url)
    acquirable = make(kind, client, "kept", ttl=ttl)
    await client.ping()
    async with kept(ttl), acquirable as lease:
        open_before = len(await connections(redis))
        await client.aclose()
        assert len(await connections(redis)) == open_before - 1
        await asyncio.sleep(2 * ttl)
        lease.check()
        waiter = asyncio.create_task(acquirable.acquire())  # even new requests leave the closed pool alone
        async with bounded(5):  # ours for wake-ups
            while len(await connections(redis)) != open_before:
                await asyncio.sleep(0.01)
    await (await waiter).release()
    free, in_use = pool_connections(client.connection_pool)
    assert not any(connection.is_connected for connection in free)
    assert not in_use
