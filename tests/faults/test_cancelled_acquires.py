"""An acquire cancelled at any moment, by a task or by a scope, leaves nothing held, queued or on its way."""

import asyncio
import itertools
import random
import time
from collections import Counter

import anyio
from redis.asyncio import Redis

from aiolocks import Lease, Lock, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import retrying
from tests.faults.support.kinds import Kind, make
from tests.faults.support.residue import wait_until_only_residue
from tests.support import seeds
from tests.support.inside import State, state_of
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.servers import RedisServer

DELAY = 0.2
"""Seconds that requests through the proxy are under way."""

ACQUIRES = 240

KINDS: list[Kind] = [Lock, Semaphore]

_ttls_ms = itertools.count(5_000)
"""Each acquire has a TTL of its own, by which its request is found in the engine's books."""


async def test_acquires_cancelled_at_random_moments_leave_only_residue(
    redis: Redis, server: RedisServer, proxy: FaultProxy
) -> None:
    """F2, F3: before it is sent, in flight, or queued; by the task and by a scope."""
    dice = random.Random(seeds.seed_of_run())
    proxy.delay_requests = DELAY
    counts: Counter[State] = Counter()

    async def cancel_one(number: int, client: Redis, latest: float) -> None:
        kind, name, ttl_ms = KINDS[number % 2], f"cancelled-{number}", next(_ttls_ms)
        scope = anyio.CancelScope()

        async def acquire() -> Lease | None:
            with scope:
                return await make(kind, client, name, ttl=ttl_ms / 1000).acquire()
            return None

        holding = await make(kind, redis, name, ttl=5).acquire() if number % 3 else None
        task = asyncio.create_task(acquire())
        for _ in range(dice.randrange(1, 4)):
            await asyncio.sleep(0)
        if latest:
            await asyncio.sleep(dice.uniform(0, latest))
        state = state_of(client, ttl_ms)
        if number % 8 < 4:
            task.cancel()
        else:
            scope.cancel()
        await asyncio.wait((task,))
        lease = None if task.cancelled() else task.result()
        if lease is not None:
            await lease.release()
        else:
            counts[state] += 1
        if holding is not None:
            assert (await make(kind, redis, name, ttl=5).statistics()).waiting == 0, "it stands in the queue still"
            await holding.release()

    async def cancel_one_of_a_new_client(number: int) -> None:
        async with retrying(proxy) if number % 2 else Redis(unix_socket_path=server.socket_path) as client:
            await cancel_one(number, client, DELAY if number % 2 else 0.0)

    async with Redis(unix_socket_path=server.socket_path) as direct, retrying(proxy) as delayed:
        async with Lock(direct, "keeps the session"), Lock(delayed, "keeps the other session"):
            clients = [delayed if number % 16 >= 8 else direct for number in range(ACQUIRES)]
            await asyncio.gather(*(cancel_one(at, client, at % 4 * DELAY) for at, client in enumerate(clients)))
        await asyncio.gather(*map(cancel_one_of_a_new_client, range(ACQUIRES, ACQUIRES + 40)))
        await wait_until_only_residue(redis, within=2.0)
    print(f"cancelled: {counts}")
    assert min(counts[state] for state in (State.BEFORE_SENDING, State.IN_FLIGHT, State.QUEUED)) >= 20

    slowest = 0.0
    async with Redis(unix_socket_path=server.socket_path) as fresh, measured_lag() as lag:
        await fresh.ping()
        for number in range(ACQUIRES + 40):
            begun = time.monotonic()
            lease = await make(KINDS[number % 2], fresh, f"cancelled-{number}", ttl=5).acquire(timeout=2)
            slowest = max(slowest, time.monotonic() - begun)
            await lease.release()
    assert_within(slowest, SLACK * 0.15 + lag.worst)


async def test_an_acquire_that_reaches_redis_after_its_undo_is_granted_to_no_caller(
    redis: Redis, proxy: FaultProxy, client: Redis
) -> None:
    """F2: the undo overtakes it, and leaves a tombstone for it."""
    async with Lock(client, "keeps the session", ttl=5):
        proxy.delay_requests = 0.5
        late = [make(kind, client, f"late-{n}", ttl=5) for n in range(10) for kind in KINDS]
        tasks = [asyncio.create_task(each.acquire()) for each in late]
        await asyncio.sleep(0.05)
        proxy.delay_requests = 0.0
        proxy.cut_all()  # what is under way still arrives, after what the next connection carries
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        await asyncio.sleep(0.6)
        held = [key for key in await redis.keys("*late-*") if b":t:" not in key and b":meta" not in key]
    assert held == []
    assert len([key async for key in redis.scan_iter("*late-*:t:*")]) == len(tasks)
