"""W25 in bad times: whatever is lost, and however the server's clock is stepped, a pause neither leaks nor outlasts."""

import asyncio
import time
from collections.abc import Callable

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.server_clock import ServerClock
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.primitives import queued
from tests.support.servers import RedisServer

TTL = 1.5


async def test_a_pause_whose_reply_is_lost_is_asked_for_again_and_lasts_a_little_longer(
    redis: Redis, proxy: FaultProxy, client: Redis
) -> None:
    proxy.drop_next_reply(b"{scraper}")
    began = time.monotonic()
    async with measured_lag() as lag:
        assert await Semaphore(client, "scraper", 2).pause(0.5) == 0.5
        async with Semaphore(redis, "scraper", 2):
            took = time.monotonic() - began
    assert took >= 0.5
    assert_within(took, 0.5 + SLACK * 0.3 + lag.worst)


async def test_a_resume_whose_reply_is_lost_grants_to_the_waiters_of_its_own_process_all_the_same(
    redis: Redis, proxy: FaultProxy, client: Redis
) -> None:
    """Their grants were in the reply; a re-check finds them."""
    mine = Semaphore(client, "scraper", 2, ttl=TTL)
    await mine.pause(60)
    waiting = [asyncio.create_task(mine.acquire()) for _ in range(2)]
    await queued(Semaphore(redis, "scraper", 2), 2)
    proxy.drop_next_reply(b"{scraper}")
    async with measured_lag() as lag:
        began = time.monotonic()
        await mine.resume()
        leases = await asyncio.gather(*waiting)
    assert_within(time.monotonic() - began, TTL / 4 + SLACK * 0.5 + lag.worst)
    assert (await mine.statistics()).paused == 0.0
    for lease in leases:
        assert await lease.release()


async def test_a_pause_lasts_no_longer_than_it_was_asked_for_after_the_clock_stepped_back(
    clock: ServerClock, servers: Callable[..., RedisServer]
) -> None:
    """F16, P9; and a dead holder's permit no longer than the pause."""
    server = servers(environment=clock.environment)
    async with Redis.from_url(server.url) as client, Redis.from_url(server.url) as other:
        orphan = await Semaphore(other, "scraper", 1, ttl=TTL, renew=False).acquire()
        mine = Semaphore(client, "scraper", 1, ttl=TTL)
        async with measured_lag() as lag:
            await mine.pause(2 * TTL)
            clock.step(-60)
            began = time.monotonic()
            with pytest.raises(AcquireTimeoutError):
                await mine.acquire(timeout=TTL / 3)
            assert 0 < (await mine.statistics()).paused <= 2 * TTL
            async with mine:
                took = time.monotonic() - began
        assert_within(took, 2 * TTL + SLACK * 0.2 + lag.worst)
        assert not orphan.held
        await orphan.release()
