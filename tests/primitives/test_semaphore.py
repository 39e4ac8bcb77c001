"""What a semaphore promises beyond the conformance table: weighted permits that come and go together."""

import asyncio
from enum import IntEnum

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Semaphore
from tests.support.lateness import SLACK, bounded
from tests.support.primitives import queued

pytestmark = pytest.mark.usefixtures("quick_sessions")


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


class Weight(IntEnum):
    LIGHT = 1
    HEAVY = 3


async def test_an_int_enum_is_the_number_that_it_is(client: Redis) -> None:
    """Other callers are not affected either. This ttl is used nowhere else, so nothing of it was kept before."""
    async with Semaphore(client, "scraper", Weight.HEAVY, ttl=17).hold(permits=Weight.LIGHT):
        async with Lock(client, "plain", ttl=17, max_waiting=Weight.LIGHT):
            pass


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
