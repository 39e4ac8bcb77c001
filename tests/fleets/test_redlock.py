"""Contenders for one name on five servers that restart at random, behind networks that delay at random."""

import asyncio
import contextlib
import os
import random
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseLostError, QuorumError, Redlock
from aiolocks.testing import FaultProxy
from tests.support import seeds
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.slow, pytest.mark.asyncio]

ACQUISITIONS = int(os.environ.get("AIOLOCKS_ACQUISITIONS", "150"))
"""The nightly run takes 10,000, with `-o faulthandler_timeout=3600`."""

CONTENDERS = 4
SERVERS = 5
TTL = 3.0


async def contend(lock: Redlock, fences: list[int], inside: list[Redlock]) -> None:
    while len(fences) < ACQUISITIONS:
        try:
            lease = await lock.acquire(timeout=None)
        except QuorumError:
            continue  # too many servers were starting
        with contextlib.suppress(LeaseLostError):
            async with lease:
                inside.append(lock)
                try:
                    assert inside == [lock]
                    lease.check()
                    fences.append(lease.fencing_token)
                    await asyncio.sleep(random.uniform(0.0, 0.002))
                finally:
                    inside.remove(lock)


async def restart(servers: list[RedisServer], dice: random.Random, over: asyncio.Event) -> None:
    """Kill one server after the other, and start it again with what it had on its disk, until it is *over*."""
    while not over.is_set():  # not until it is cancelled: the thread that starts a server would go on
        await asyncio.sleep(dice.uniform(0.3, 1.5))
        server = dice.choice(servers)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(dice.uniform(0.0, 0.3))
        await asyncio.to_thread(server.restart)


async def delay(proxies: list[FaultProxy], dice: random.Random) -> None:
    """Have one of *proxies* after the other hold its requests back for a while."""
    while True:
        proxy = dice.choice(proxies)
        proxy.delay_requests = dice.choice([0.002, 0.01, 0.05, 0.3])
        await asyncio.sleep(dice.uniform(0.0, 0.1))
        proxy.delay_requests = 0.0


@pytest.mark.timeout(60 if ACQUISITIONS <= 500 else 3600)
async def test_fencing_tokens_rise_while_servers_restart_and_requests_wait(servers: Callable[..., RedisServer]) -> None:
    asyncio.get_running_loop().slow_callback_duration = 60
    dice = random.Random(seeds.seed_of_run())
    running = [servers(options={"appendonly": "yes", "appendfsync": "always"}) for _ in range(SERVERS)]
    fences: list[int] = []
    inside: list[Redlock] = []
    async with contextlib.AsyncExitStack() as stack:
        locks = []
        proxies: list[FaultProxy] = []
        for _ in range(CONTENDERS):
            own = [await stack.enter_async_context(FaultProxy(port=server.port)) for server in running]
            clients = [await stack.enter_async_context(Redis.from_url(proxy.url)) for proxy in own]
            locks.append(Redlock(clients, "fleet", ttl=TTL))
            proxies += own
        over = asyncio.Event()
        trouble = [asyncio.create_task(restart(running, dice, over))]
        trouble += [asyncio.create_task(delay(proxies[at::SERVERS], dice)) for at in range(SERVERS)]
        try:
            await asyncio.gather(*(contend(lock, fences, inside) for lock in locks))
        finally:
            over.set()
            for task in trouble[1:]:
                task.cancel()
            await asyncio.wait(trouble)
        for proxy in proxies:
            proxy.delay_requests = 0.0
    assert fences == sorted(set(fences))
