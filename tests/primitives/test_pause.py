"""`pause` and `resume` of a semaphore: nothing is granted to any process for a while, and holders go on."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lease, RateLimiter, Semaphore
from aiolocks.events import Event
from tests.support.heard import hearing
from tests.support.lateness import assert_within, measured_lag
from tests.support.primitives import as_a_stranger, queued
from tests.support.virtual import clock

pytestmark = pytest.mark.usefixtures("quick_sessions")

PAUSE = 0.6
"""Seconds."""

SOON = 0.05
"""Seconds after its end by which the first waiter has its lease, net of what the loop is late."""


@contextlib.asynccontextmanager
async def paused(client: Redis, seconds: float = 60.0) -> AsyncIterator[None]:
    await Semaphore(client, "scraper", None).pause(seconds)
    try:
        yield
    finally:
        await Semaphore(client, "scraper", None).resume()


async def turn(semaphore: Semaphore, turns: list[float]) -> None:
    async with semaphore:
        turns.append(clock())


async def test_waiters_of_all_processes_get_what_is_free_at_the_end_of_a_pause(client: Redis, stranger: Redis) -> None:
    """And none before. Holders whose leases end sooner than the pause do not make them look at another time."""
    holder = await Semaphore(stranger, "scraper", 7, ttl=0.4).acquire()
    async with measured_lag() as lag:
        began = clock()
        assert await Semaphore(client, "scraper", 7).pause(PAUSE) == PAUSE
        turns = list[float]()
        waiting = [
            as_a_stranger(turn(Semaphore(each, "scraper", 7), turns)) for each in (client, stranger) for _ in range(3)
        ]
        await queued(Semaphore(client, "scraper", 7), 6)
        await asyncio.gather(*waiting)
    assert min(turns) - began >= PAUSE - 0.002
    assert_within(max(turns) - began, PAUSE + SOON + lag.worst)
    assert holder.held
    assert await holder.release()


async def test_a_caller_that_comes_during_a_pause_is_granted_at_its_end(client: Redis) -> None:
    """With an idle session, and with a semaphore that has no holder."""
    semaphore, turns = Semaphore(client, "scraper", 1), list[float]()
    await semaphore.pause(PAUSE)
    await asyncio.sleep(PAUSE / 2)
    began = clock()
    async with measured_lag() as lag:
        await turn(semaphore, turns)
    assert turns[0] - began > PAUSE / 2 - 0.1
    assert_within(turns[0] - began, PAUSE / 2 + SOON + lag.worst)


async def test_resume_grants_what_is_free_at_once_and_says_if_there_was_a_pause(client: Redis, stranger: Redis) -> None:
    mine, theirs = Semaphore(client, "scraper", 2), Semaphore(stranger, "scraper", 2)
    assert await mine.resume() is False
    await mine.pause(60)
    waiting = list[asyncio.Task[Lease]]()
    for each in (mine, theirs, mine):
        waiting.append(as_a_stranger(each.acquire()))
        await queued(mine, len(waiting))
    async with asyncio.timeout(2):
        assert await theirs.resume() is True
        leases = await asyncio.gather(*waiting[:2])
    assert not waiting[2].done()
    await leases[0].release()
    for lease in (leases[1], await waiting[2]):
        assert await lease.release()
    assert await mine.resume() is False
    assert (await mine.statistics()).paused == 0.0


async def test_a_pause_shows_in_statistics_and_refuses_callers_that_do_not_wait(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 5)
    async with semaphore.hold(permits=2) as lease:
        async with paused(client):
            now = await semaphore.statistics()
            assert (now.permits, now.holders, now.limit, now.kept_until) == (2, 1, 5, None)
            assert now.fencing_token == lease.fencing_token
            assert 59 < now.paused <= 60
            assert await semaphore.locked()
            assert [holder.permits for holder in await semaphore.holders()] == [2]
            assert await as_a_stranger(semaphore.try_acquire()) is None
            for timeout in (0, 0.05):
                with pytest.raises(AcquireTimeoutError) as caught:
                    await as_a_stranger(semaphore.acquire(timeout=timeout))
                assert 59 < (caught.value.retry_after or 0) <= 60
        assert not await semaphore.locked()
    assert (await semaphore.statistics()).paused == 0.0


async def test_a_rate_limiter_starts_nothing_during_a_pause(client: Redis, stranger: Redis) -> None:
    mine, theirs = (RateLimiter(each, "scraper", 5, per=0.2) for each in (client, stranger))
    assert await mine.resume() is False
    assert await theirs.pause(60) == 60
    assert await mine.try_acquire() is False
    assert (await mine.statistics()).paused > 59
    assert await mine.resume() is True
    began = clock()
    async with measured_lag() as lag:
        await mine.pause(PAUSE)
        async with theirs:
            took = clock() - began
    assert took >= PAUSE - 0.002
    assert_within(took, PAUSE + SOON + lag.worst)


async def test_each_pause_is_an_event_that_says_how_long_it_lasts(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 1)
    with hearing() as heard:
        await semaphore.pause(30)
        left = await semaphore.pause(10)
        await semaphore.resume()
    first, second = heard.of("paused")
    assert first == Event("paused", "scraper", "semaphore", 30.0)
    assert second.seconds == left > 29


async def test_a_pause_lasts_a_millisecond_to_a_day(client: Redis) -> None:
    semaphore: Any = Semaphore(client, "scraper", 1)
    for bad in (0, -1, 0.0009, 86_401, math.nan, math.inf, timedelta(days=2), 10**400):
        with pytest.raises(ValueError, match="seconds"):
            await semaphore.pause(bad)
    for wrong in ("30", None, True):
        with pytest.raises(TypeError, match="seconds"):
            await semaphore.pause(wrong)
    assert await client.keys("*scraper*") == []
    assert await semaphore.pause(0.001) == 0.001
    assert await semaphore.pause(timedelta(days=1)) == 86_400
    assert await semaphore.resume()


async def test_nothing_stays_in_use_after_pauses_among_holders_of_which_nothing_is_known(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 5)
    first, second, third = [await semaphore.acquire() for _ in range(3)]
    await client.delete("aiolocks:semaphore:{scraper}:meta")
    assert await semaphore.try_acquire() is None
    for ending in ([third], [first, second]):
        await semaphore.pause(60)
        for lease in ending:
            await lease.release()
        await semaphore.resume()
    async with semaphore.hold(permits=5, timeout=0):
        assert (await semaphore.statistics()).permits == 5
