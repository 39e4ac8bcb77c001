"""`pause` and `resume` of a semaphore: nothing is granted to any process for a while, and holders go on."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lease, LimitMismatchError, LockManager, RateLimiter, Semaphore
from aiolocks.events import Event
from tests.support.heard import hearing
from tests.support.lateness import assert_within, measured_lag
from tests.support.primitives import as_a_stranger, queued
from tests.support.virtual import clock

pytest_plugins = ["tests.support.table"]
pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quick_sessions")]

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


async def test_waiters_of_every_process_are_granted_what_is_free_at_the_end_of_a_pause(
    client: Redis, stranger: Redis
) -> None:
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


async def test_resume_grants_what_is_free_at_once_and_says_whether_there_was_a_pause(
    client: Redis, stranger: Redis
) -> None:
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


async def test_holders_go_on_during_a_pause(client: Redis, stranger: Redis) -> None:
    """They are renewed, guard, release, and are handed to another process."""
    semaphore = Semaphore(client, "scraper", 3, ttl=0.3)
    async with semaphore as first:
        lease = await as_a_stranger(semaphore.acquire())
        async with paused(client):
            await asyncio.sleep(0.5)
            assert first.held
            assert lease.held
            assert len(await first.guard(("PING",))) == 1
            adopted = await Semaphore(stranger, "scraper", 3).adopt(await lease.hand_off())
            assert adopted.fencing_token > lease.fencing_token
            assert (await semaphore.statistics()).holders == 2
            assert await adopted.release()
            assert (await semaphore.statistics()).holders == 1


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


async def test_retry_after_is_the_end_of_a_lease_that_lasts_longer_than_the_pause(client: Redis) -> None:
    """Where no permits are free when the pause ends."""
    semaphore = Semaphore(client, "scraper", 1, ttl=100)
    lease = await semaphore.acquire()
    async with paused(client, 50):
        with pytest.raises(AcquireTimeoutError) as caught:
            await as_a_stranger(semaphore.acquire(timeout=0))
        assert 99 < (caught.value.retry_after or 0) <= 100
        await lease.release()
        with pytest.raises(AcquireTimeoutError) as caught:
            await semaphore.acquire(timeout=0)
        assert 49 < (caught.value.retry_after or 0) <= 50


async def test_a_later_pause_extends_and_never_shortens(client: Redis, stranger: Redis) -> None:
    mine, theirs = Semaphore(client, "scraper", 1), Semaphore(stranger, "scraper", 1)
    assert await mine.pause(timedelta(minutes=1)) == 60.0
    assert 59 < await theirs.pause(0.001) <= 60
    assert await theirs.pause(90) == 90.0
    lasts = await asyncio.gather(*(mine.pause(seconds) for seconds in (1, 120, 5)))
    assert max(lasts) == 120
    assert 119 < (await mine.statistics()).paused <= 120
    assert await theirs.resume()
    async with asyncio.timeout(2), mine:
        pass


async def test_a_semaphore_can_be_paused_before_its_first_use(client: Redis, stranger: Redis) -> None:
    anyones = Semaphore(client, "scraper", None)
    assert await anyones.pause(60) == 60
    assert (await anyones.statistics()).limit == 0
    with pytest.raises(LimitMismatchError):
        await anyones.acquire()
    waiting = as_a_stranger(Semaphore(stranger, "scraper", 2).acquire())
    await queued(anyones, 1)
    assert (await anyones.statistics()).limit == 2
    assert await as_a_stranger(anyones.try_acquire()) is None
    assert await anyones.resume()
    assert await (await waiting).release()


async def test_a_limit_can_change_during_a_pause(client: Redis, stranger: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 2)
    async with paused(client):
        waiting = [as_a_stranger(Semaphore(stranger, "scraper", 2).acquire(permits=each)) for each in (2, 1)]
        await queued(semaphore, 2)
        await semaphore.resize(1)
        with pytest.raises(LimitMismatchError):
            await waiting[0]
        with pytest.raises(LimitMismatchError):
            await as_a_stranger(semaphore.acquire(permits=2))
        await semaphore.resize(1_000_000_000)
        assert await as_a_stranger(semaphore.try_acquire()) is None
        assert not waiting[1].done()
    assert await (await waiting[1]).release()


async def test_to_revoke_the_holders_ends_no_pause(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 3)
    lease = await semaphore.acquire()
    async with paused(client):
        gone = await semaphore.revoke(force=True)
        assert [holder.fencing_token for holder in gone] == [lease.fencing_token]
        assert await semaphore.revoke(timeout=0) == ()
        assert (await semaphore.statistics()).paused > 59
        assert await as_a_stranger(semaphore.try_acquire()) is None
    with contextlib.suppress(Exception):
        await lease.release()


async def test_a_permit_that_min_hold_keeps_stays_kept_after_a_pause(client: Redis) -> None:
    """And what is free beside it can be had."""
    semaphore = Semaphore(client, "scraper", 2, min_hold=60)
    async with semaphore:
        pass
    async with paused(client, 30):
        now = await semaphore.statistics()
        assert (now.permits, now.holders) == (1, 0)
        assert now.kept_until is not None
    lease = await Semaphore(client, "scraper", 2).acquire(timeout=0)
    assert await as_a_stranger(semaphore.try_acquire()) is None
    await lease.release()
    await semaphore.revoke()


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


@pytest.mark.parametrize("bad", [0, -1, 0.0009, 86_401, math.nan, math.inf, timedelta(days=2), 10**400])
async def test_a_pause_lasts_a_millisecond_to_a_day(client: Redis, bad: Any) -> None:
    with pytest.raises(ValueError, match="seconds"):
        await Semaphore(client, "scraper", 1).pause(bad)
    assert await client.keys("*scraper*") == []


@pytest.mark.parametrize("bad", ["30", None, True])
async def test_a_pause_of_another_type_is_an_error(client: Redis, bad: Any) -> None:
    with pytest.raises(TypeError, match="seconds"):
        await Semaphore(client, "scraper", 1).pause(bad)


async def test_the_longest_and_the_shortest_pause(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 1)
    assert await semaphore.pause(0.001) == 0.001
    assert await semaphore.pause(timedelta(days=1)) == 86_400
    assert await semaphore.resume()


async def test_a_closed_manager_pauses_and_resumes_nothing() -> None:
    async with LockManager.from_url("memory://") as locks:
        semaphore = locks.semaphore("scraper", 1)
        await semaphore.pause(1)
    for ask in (lambda: semaphore.pause(1), semaphore.resume):
        with pytest.raises(RuntimeError, match="closed"):
            await ask()
