"""Connections that are killed, scripts and data that are flushed, more tasks than connections: the locks go on."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Semaphore
from tests.faults.support.kinds import Kind, make
from tests.faults.support.residue import connections, wait_until_only_residue
from tests.support.inside import pool_connections
from tests.support.lateness import SLACK, assert_within
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]


class Bustle:
    """Tasks of several clients that take turns until told to end, and what they saw."""

    def __init__(self, *clients: Redis, ttl: float = 1.0) -> None:
        self.grants = 0
        self.most: Counter[str] = Counter()
        self._inside: Counter[str] = Counter()
        self._ended = False
        self._tasks = [
            asyncio.create_task(self._take_turns(acquirable))
            for client in clients
            for acquirable in (Lock(client, "bustle", ttl=ttl), Semaphore(client, "bustle", 2, ttl=ttl))
            for _ in range(4)
        ]

    async def end(self) -> None:
        """Stop the tasks.

        Raises:
            Exception: What one of them met.
        """
        self._ended = True
        await asyncio.gather(*self._tasks)

    async def _take_turns(self, acquirable: Lock | Semaphore) -> None:
        kind = type(acquirable).__name__
        while not self._ended:
            async with acquirable as lease:
                self.grants += 1
                self._inside[kind] += 1
                self.most[kind] = max(self.most[kind], self._inside[kind])
                await asyncio.sleep(random.uniform(0, 0.01))
                self._inside[kind] -= 1
                lease.check()


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
async def test_locks_make_progress_while_connections_are_killed_every_50_ms(
    redis: Redis, server: RedisServer, which: str
) -> None:
    """F11: CLIENT KILL of one type and the other."""
    run: Any = redis.execute_command
    async with Redis(unix_socket_path=server.socket_path) as one, Redis(unix_socket_path=server.socket_path) as other:
        async with Lock(one, "held all the time", ttl=1) as lease:
            bustle = Bustle(one, other)
            kills = await repeatedly(lambda: run("CLIENT", "KILL", "TYPE", which, "SKIPME", "yes"), 0.05, seconds=3)
            lease.check()
        healed_at = time.monotonic()
        await bustle.end()
        healed_after = time.monotonic() - healed_at
        await wait_until_only_residue(redis, within=2.0)
    assert bustle.most == {"Lock": 1, "Semaphore": 2}
    assert bustle.grants > kills
    assert_within(healed_after, 1.0 + SLACK * 0.2)


async def test_no_noscript_reaches_a_caller_while_scripts_are_flushed_in_a_loop(redis: Redis, redis_url: str) -> None:
    """F12: every verb of both kinds."""
    async with Redis.from_url(redis_url) as one, Redis.from_url(redis_url) as other:
        async with Lock(one, "renewed by hand", ttl=2) as lease:
            bustle = Bustle(one, other)

            async def flush_and_renew() -> None:
                await redis.script_flush()
                assert await lease.renew()
                await redis.script_flush()
                await Semaphore(other, "resized", 2).resize(random.randint(1, 5))

            flushes = 0
            async with asyncio.timeout(30):
                while bustle.grants <= 100 or flushes < 50:
                    flushes += await repeatedly(flush_and_renew, 0.001, seconds=0.2)
        await bustle.end()
    assert bustle.most == {"Lock": 1, "Semaphore": 2}
    await wait_until_only_residue(redis, within=2.0)


async def test_acquires_cancelled_while_scripts_are_flushed_leave_only_residue(redis: Redis, another: Redis) -> None:
    """F12: a request that is sent again because its script was gone must not pass its own undo."""
    async with Lock(another, "keeps the session"):
        for number in range(200):
            acquirable = make(Lock if number % 2 else Semaphore, another, f"flushed-{number}", ttl=5)
            if number % 3 == 0:
                await redis.script_flush()
            flushing = asyncio.ensure_future(redis.script_flush())
            acquiring = asyncio.create_task(acquirable.acquire())
            for _ in range(random.randrange(1, 6)):
                await asyncio.sleep(0)
            acquiring.cancel()
            await asyncio.wait((acquiring, flushing))
            if not acquiring.cancelled():
                await acquiring.result().release()
    await wait_until_only_residue(redis, within=1.0)


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
    async with acquirable as lease:
        open_before = len(await connections(redis))
        await client.aclose()
        assert len(await connections(redis)) == open_before - 1
        await asyncio.sleep(2 * ttl)
        lease.check()
        waiter = asyncio.create_task(acquirable.acquire())  # even new requests leave the closed pool alone
        await asyncio.sleep(0.1)
        assert len(await connections(redis)) == open_before, "ours for wake-ups"
    await (await waiter).release()
    free, in_use = pool_connections(client.connection_pool)
    assert not any(connection.is_connected for connection in free)
    assert not in_use


async def test_twenty_thousand_tasks_that_ask_at_once_are_no_dead_link(server: RedisServer) -> None:
    """The last reply is long on its way, but those before it show that the server answers."""

    async def take(number: int) -> None:
        lease = await Lock(redis, f"burst {number}").acquire()
        assert await lease.release()

    async with Redis(unix_socket_path=server.socket_path) as redis:
        await asyncio.gather(*(take(number) for number in range(20_000)))
        await redis.flushdb()  # the fencing tokens of so many names would keep the check for leftovers busy
