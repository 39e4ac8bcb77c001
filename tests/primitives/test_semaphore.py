"""What a semaphore promises beyond the conformance table: weighted permits that come and go together."""

import asyncio
import time

import pytest
from redis.asyncio import Redis

from aiolocks import Semaphore
from tests.support.lateness import SLACK, assert_within, bounded, measured_lag
from tests.support.primitives import queued
from tests.support.workers import holding

pytest_plugins = ["tests.support.table"]
pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quick_sessions")]


async def test_a_lease_takes_as_many_permits_as_were_asked_for(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 3)
    async with semaphore.hold(permits=2):
        now = await semaphore.statistics()
        assert (now.holders, now.permits, now.limit) == (1, 2, 3)


async def test_more_permits_than_are_free_are_never_in_use(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 5)
    inside = most = turns = 0

    async def work(permits: int) -> None:
        nonlocal inside, most, turns
        for _ in range(3):
            async with semaphore.hold(permits=permits):
                inside, turns = inside + permits, turns + 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= permits

    async with bounded(10 * SLACK):
        await asyncio.gather(*(work(1 + number % 5) for number in range(12)))
    assert (most, turns) == (5, 12 * 3)


async def test_a_big_request_is_not_starved_by_small_ones_behind_it(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 3)
    granted: list[tuple[int, int]] = []

    async def work(permits: int) -> None:
        async with semaphore.hold(permits=permits) as lease:
            granted.append((lease.fencing_token, permits))

    holder = await semaphore.acquire()
    tasks = [asyncio.create_task(work(3))]
    await queued(semaphore, 1)
    for small in range(3):
        tasks.append(asyncio.create_task(work(1)))
        await queued(semaphore, 2 + small)
    assert (await semaphore.statistics()).permits == 1
    await holder.release()
    await asyncio.gather(*tasks)
    assert [permits for _, permits in sorted(granted)] == [3, 1, 1, 1]


async def test_a_killed_holders_permits_come_back_within_its_ttl(redis: Redis, redis_url: str) -> None:
    semaphore = Semaphore(redis, "scraper", 2)
    with holding(redis_url, "locks.semaphore('scraper', 2, ttl=0.4).hold(permits=2)") as worker:
        assert await worker.says() == "holds"
        waiter = asyncio.create_task(semaphore.acquire(permits=2))
        await queued(semaphore, 1)
        worker.process.kill()
        killed = time.monotonic()
        async with measured_lag() as lag:
            lease = await waiter
            took = time.monotonic() - killed
    assert_within(took, 0.4 + SLACK * 0.2 + lag.worst)
    await lease.release()
