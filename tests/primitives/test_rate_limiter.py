"""`RateLimiter`: no window of `per` seconds has more than `limit` starts.

To each other, `client` and `stranger` are two processes.
"""

import asyncio
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, LimitMismatchError, LockManager, QueueFullError, RateLimiter
from tests.support import network
from tests.support.heard import hearing
from tests.support.lateness import SLACK, assert_within
from tests.support.primitives import NO_SERVER, SOON, cancelled, queued
from tests.support.virtual import clock

pytestmark = pytest.mark.usefixtures("quick_sessions")

NAME = "api"
PER = 1.0


def limiter_of(client: Redis, limit: int = 3, per: float = PER, **options: Any) -> RateLimiter:
    return RateLimiter(client, NAME, limit, per=per, **options)


# Starts


async def test_so_many_start_at_once_and_the_next_after_per(client: Redis) -> None:
    limiter, began = limiter_of(client), clock()
    for _ in range(3):
        async with limiter as nothing:
            assert nothing is None
    assert_within(clock() - began, 0.5 * SLACK)
    await limiter.acquire()
    assert clock() - began >= PER
    assert_within(clock() - began, PER + 0.1 * SLACK)


async def test_no_window_has_more_starts_than_the_limit(client: Redis, stranger: Redis) -> None:
    limiters, starts = [limiter_of(client, 5, 0.2), limiter_of(stranger, 5, 0.2)], list[float]()

    async def work(limiter: RateLimiter) -> None:
        for _ in range(3):
            async with limiter:
                starts.append(clock())

    await asyncio.gather(*(work(limiter) for limiter in limiters for _ in range(5)))
    assert len(starts) == 30
    assert min(late - early for early, late in zip(starts, starts[5:], strict=False)) > 0.2


@pytest.mark.real_time
async def test_a_start_counts_for_per_from_when_the_caller_got_it(client: Redis) -> None:
    """Not from its grant, which can be earlier: a window would have more starts than the limit."""
    limiter, starts = limiter_of(client, 1), list[float]()

    async def start() -> None:
        await limiter.acquire()
        starts.append(time.monotonic())

    first = asyncio.create_task(start())
    await asyncio.sleep(0)  # it has sent its request
    time.sleep(0.08)
    await first
    await start()
    assert starts[1] - starts[0] >= PER


async def test_leaving_the_block_does_nothing_and_its_exception_leaves_unchanged(client: Redis) -> None:
    limiter, error = limiter_of(client, 1), ZeroDivisionError()
    with pytest.raises(ZeroDivisionError) as caught:
        async with limiter:
            raise error
    assert caught.value is error
    assert not await limiter.try_acquire()
    assert (await limiter.statistics()).holders == 0


# Waiting


@pytest.mark.parametrize("by", ["acquire", "block"])
async def test_a_caller_that_waits_too_long_gets_an_error_that_says_when(client: Redis, by: str) -> None:
    limiter = limiter_of(client, 1, acquire_timeout=SOON)
    await limiter.acquire()
    with pytest.raises(AcquireTimeoutError, match=f"rate 'api': not granted within {SOON} s: no start is") as caught:
        if by == "acquire":
            await limiter.acquire()
        else:
            async with limiter:
                pass
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= PER
    assert (await limiter.statistics()).waiting == 0


async def test_a_caller_that_finds_too_many_waiting_is_refused_at_once(client: Redis) -> None:
    limiter = limiter_of(client, 1, max_waiting=1)
    await limiter.acquire()
    waits = asyncio.create_task(limiter.acquire())
    await queued(limiter, 1)
    with pytest.raises(
        QueueFullError, match="rate 'api': no start is free, or it is paused, and its queue is full"
    ) as caught:
        await limiter.acquire()
    assert caught.value.waiting == 1
    assert not await limiter.try_acquire()
    await waits


async def test_a_cancelled_wait_counts_as_no_start(client: Redis) -> None:
    limiter = limiter_of(client, 1)
    await limiter.acquire()
    waits = asyncio.create_task(limiter.acquire())
    await queued(limiter, 1)
    await cancelled(waits)
    assert ((now := await limiter.statistics()).permits, now.waiting) == (1, 0)


# Cost


async def test_a_cost_counts_as_so_many_starts(client: Redis) -> None:
    limiter = limiter_of(client, 10)
    assert await limiter.try_acquire(cost=7)
    assert not await limiter.try_acquire(cost=4)
    await limiter.acquire(cost=3)
    now = await limiter.statistics()
    assert (now.permits, now.limit, now.holders, now.waiting) == (10, 10, 0, 0)
    assert now.kept_until is not None


@pytest.mark.parametrize("ask", ["acquire", "try_acquire"])
async def test_a_wrong_cost_or_one_above_the_limit_is_an_error_before_anything_is_sent(ask: str) -> None:
    limiter = limiter_of(NO_SERVER)
    with pytest.raises(LimitMismatchError, match="rate 'api': a cost of 4 is above the limit, 3 per 1 s") as caught:
        await getattr(limiter, ask)(cost=4)
    assert (caught.value.name, caught.value.permits, caught.value.limit) == (NAME, 4, 3)
    for cost in (0, -1, 1.5, True, None):
        with pytest.raises((TypeError, ValueError), match="cost must be"):
            await getattr(limiter, ask)(cost=cost)


# Use


@pytest.mark.parametrize(("given", "says"), [
    ({"limit": 0}, "limit must be between 1 and"), ({"limit": 100_001}, "limit must be between 1 and 100,000"),
    ({"limit": "3"}, "limit must be an int"), ({"per": 0.05}, "per must be between 0.1 seconds and a day"),
    ({"per": timedelta(days=1, seconds=1)}, "per must be between"), ({"per": None}, "per must be a number of seconds"),
    ({"ttl": 5}, "RateLimiter has no 'ttl': it holds nothing"), ({"period": 5}, "use per="),
    ({"name": ""}, "name must be"), ({"acquire_timeout": -1}, "acquire_timeout must be"),
])  # fmt: skip
async def test_a_wrong_option_is_refused_at_once(given: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        RateLimiter(NO_SERVER, **{"name": NAME, "limit": 3, "per": PER, **given})


async def test_a_misused_limiter_says_how_it_is_used(client: Redis) -> None:
    limiter: Any = limiter_of(client)
    with pytest.raises(TypeError, match="use cost="):
        await limiter.acquire(permits=2)
    with pytest.raises(TypeError, match="entered by `async with`"):
        with limiter:
            pass
    with pytest.raises(AttributeError, match="there is nothing to release"):
        limiter.release()
    attempt = limiter.try_acquire()
    with pytest.raises(TypeError, match="if await limiter"):
        assert attempt
    assert await attempt
    with pytest.raises(TypeError, match="RateLimiter takes client, name, limit, per, and then keywords"):
        RateLimiter(client, NAME)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def test_a_manager_makes_one_with_its_prefix_and_ends_its_waits(client: Redis) -> None:
    locks = LockManager(client, prefix="mine:", ttl=5, on_lost="flag", min_hold=3, acquire_timeout=60)
    limiter = locks.rate_limiter(NAME, 1, per=PER)
    assert repr(limiter) == "<RateLimiter 'api' limit=1 per=1>"
    await limiter.acquire()
    assert await client.exists("mine:rate:{api}") == 1
    waits = asyncio.create_task(limiter.acquire())
    await queued(limiter, 1)
    await locks.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await waits


async def test_its_events_name_the_kind(client: Redis) -> None:
    with hearing() as heard:
        await limiter_of(client, 1).acquire()
        await network.until(lambda: len(heard) > 1)
    assert [(event.kind, event.name, event.primitive) for event in heard] == [
        ("acquired", NAME, "rate"),
        ("released", NAME, "rate"),
    ]


@pytest.mark.real_time
async def test_a_caller_that_stood_still_after_its_grant_asks_anew(client: Redis, stranger: Redis) -> None:
    """Its start is another's by now."""
    limiter, other = limiter_of(client, 1, 0.3), limiter_of(stranger, 1, 0.3)
    starts = list[float]()

    async def work() -> None:
        await limiter.acquire()
        starts.append(time.monotonic())

    await other.acquire()
    tasks = [asyncio.create_task(work()) for _ in range(3)]
    await queued(limiter, 3)
    time.sleep(1.5)
    await asyncio.gather(*tasks)
    assert min(late - early for early, late in pairwise(starts)) >= 0.3
