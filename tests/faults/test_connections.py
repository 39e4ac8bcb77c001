"""Connections that are killed, scripts and data that are flushed, more tasks than connections: the locks go on."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseLostError, Lock, Semaphore
from tests.faults.support.residue import connections, wait_until_only_residue
from tests.support.inside import pool_connections
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]


def retrying(server: RedisServer) -> Redis:
    """Return a client with redis-py's default retries, which `from_url` does not set."""
    return Redis(unix_socket_path=server.socket_path)


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

    async def kill() -> None:
        await run("CLIENT", "KILL", "TYPE", which, "SKIPME", "yes")

    async with retrying(server) as one, retrying(server) as other:
        async with Lock(one, "held all the time", ttl=1) as lease:
            bustle = Bustle(one, other)
            kills = await repeatedly(kill, 0.05, seconds=3)
            lease.check()
        healed_at = time.monotonic()
        await bustle.end()
        healed_after = time.monotonic() - healed_at
        took = await wait_until_only_residue(redis, within=2.0)
    print(
        f"{bustle.grants} grants during {kills} kills of {which} connections; all ended {healed_after:.2f} s "
        f"after the last, only residue {took:.3f} s later"
    )
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
    print(f"{bustle.grants} grants during {2 * flushes} flushes")
    assert bustle.most == {"Lock": 1, "Semaphore": 2}
    await wait_until_only_residue(redis, within=2.0)


async def test_acquires_cancelled_while_scripts_are_flushed_leave_only_residue(redis: Redis, redis_url: str) -> None:
    """F12: a request that is sent again because its script was gone must not pass its own undo."""
    async with Redis.from_url(redis_url) as client, Lock(client, "keeps the session"):
        for number in range(200):
            name = f"flushed-{number}"
            acquirable = Lock(client, name, ttl=5) if number % 2 else Semaphore(client, name, 1, ttl=5)
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
    took = await wait_until_only_residue(redis, within=1.0)
    print(f"only residue after {took:.3f} s")


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_holder_whose_data_was_flushed_learns_it_at_its_next_renewal_and_fences_go_on_rising(
    redis: Redis, redis_url: str, kind: type[Lock] | type[Semaphore]
) -> None:
    """F6: as after an empty restart."""
    ttl = 1.5
    async with Redis.from_url(redis_url) as client, measured_lag() as lag:
        acquirable = Lock(client, "flushed", ttl=ttl) if kind is Lock else Semaphore(client, "flushed", 1, ttl=ttl)
        flushed_at = stopped_at = 0.0
        with pytest.raises(LeaseLostError):
            async with acquirable as lease:
                await asyncio.sleep(ttl / 2)
                await redis.flushall()
                flushed_at = time.monotonic()
                try:
                    await asyncio.sleep(ttl)
                finally:
                    stopped_at = time.monotonic()
        print(f"{kind.__name__}: stopped {stopped_at - flushed_at:.3f} s after the flush, with a ttl of {ttl} s")
        assert lease.lost
        assert_within(stopped_at - flushed_at, 1.1 * ttl / 3 + SLACK * 0.05 + lag.worst)
        async with acquirable as next_lease:
            assert next_lease.fencing_token > lease.fencing_token


async def test_a_thousand_tasks_on_one_default_client_need_few_connections(redis: Redis, server: RedisServer) -> None:
    before = len(await connections(redis))
    most = 0
    async with retrying(server) as client:
        semaphore = Semaphore(client, "narrow", 50)

        async def work(number: int) -> None:
            async with Lock(client, f"own-{number}"), semaphore:
                await asyncio.sleep(0.001)

        begun = time.monotonic()
        work_of_all = asyncio.gather(*(work(number) for number in range(1_000)))
        while not work_of_all.done():
            most = max(most, len(await connections(redis)) - before)
            await asyncio.sleep(0.02)
        await work_of_all
        took = time.monotonic() - begun
    print(f"1,000 tasks with a lock and a permit each: {took:.2f} s, over {most} connections")
    assert most == 2, "one for commands and one for wake-ups"


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_closing_the_client_while_a_lease_is_held_neither_ends_it_nor_reopens_the_pool(
    redis: Redis, redis_url: str, kind: type[Lock] | type[Semaphore]
) -> None:
    ttl = 0.6
    client = Redis.from_url(redis_url)
    acquirable = Lock(client, "kept", ttl=ttl) if kind is Lock else Semaphore(client, "kept", 1, ttl=ttl)
    await client.ping()
    async with acquirable as lease:
        open_before = len(await connections(redis))
        await client.aclose()
        open_after = len(await connections(redis))
        await asyncio.sleep(2 * ttl)
        lease.check()
        waiter = asyncio.create_task(acquirable.acquire())  # even new requests leave the closed pool alone
        await asyncio.sleep(0.1)
        assert len(await connections(redis)) == open_after + 1, "ours for wake-ups"
    await (await waiter).release()
    print(f"{kind.__name__}: {open_before} connections before closing the client, {open_after} after")
    assert open_after == open_before - 1
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
