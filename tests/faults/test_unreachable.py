"""Whoever asks a Redis that cannot be reached, or waits in its queue, gets redis-py's own exception in time."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aiolocks import AcquireTimeoutError, Lock, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import UNREACHABLE, outcome_of, retrying
from tests.support.lateness import SLACK, assert_within, in_time, measured_lag
from tests.support.primitives import queued
from tests.support.servers import RedisServer

GRACE = 1.0
"""Seconds that an acquire which failed waits for its undo, beyond its timeout."""


async def test_a_client_without_retries_learns_at_once_that_redis_is_down(own_server: RedisServer) -> None:
    own_server.kill()
    async with Redis.from_url(own_server.url, retry=Retry(NoBackoff(), 0)) as client:
        for asking in (
            Lock(client, "down").acquire, Lock(client, "down").try_acquire, Semaphore(client, "down", 3).acquire,
            Semaphore(client, "down", 3).try_acquire, Lock(client, "down").locked,
            Semaphore(client, "down", 3).statistics,
        ):  # fmt: skip
            async with in_time(SLACK * 0.15):
                result, _ = await outcome_of(asking)
            assert isinstance(result, UNREACHABLE), asking


@pytest.mark.slow
async def test_a_caller_of_an_unreachable_redis_gets_redis_pys_exception_in_time(
    own_server: RedisServer, proxy: FaultProxy
) -> None:
    """Never AcquireTimeoutError and never None: nobody has said that somebody else holds the lock."""
    own_server.kill()
    proxy.black_hole = True
    down = Redis(host="127.0.0.1", port=own_server.port)
    silent, silent_without_retries = retrying(proxy), Redis.from_url(proxy.url)
    cases: dict[str, tuple[Callable[[], Awaitable[object]], float]] = {
        "down, timeout 1": (lambda: Lock(down, "a").acquire(timeout=1), 1.0),
        "down, no timeout": (lambda: Lock(down, "b").acquire(), 10.0),
        "down, try_acquire": (lambda: Lock(down, "c").try_acquire(), 10.0),
        "silent, timeout 1": (lambda: Lock(silent, "a").acquire(timeout=1), 1.0),
        "silent, timeout 3": (lambda: Semaphore(silent, "b", 2).acquire(timeout=3), 3.0),
        "silent, no timeout": (lambda: Lock(silent, "c").acquire(), 10.0),
        "silent, timeout 20": (lambda: Lock(silent, "d").acquire(timeout=20), 10.0),
        "silent, try_acquire": (lambda: Semaphore(silent, "e", 2).try_acquire(), 10.0),
        "silent, no retries": (lambda: Lock(silent_without_retries, "a").acquire(), 10.0),
    }
    async with down, silent, silent_without_retries, measured_lag() as lag:
        outcomes = await asyncio.gather(*(outcome_of(asking) for asking, _ in cases.values()))
        proxy.cut_all()
    for (case, (_, bound)), (result, took) in zip(cases.items(), outcomes, strict=True):
        assert isinstance(result, UNREACHABLE), case
        assert not isinstance(result, AcquireTimeoutError)
        assert_within(took, bound + SLACK * 0.1 + lag.worst, case)


@pytest.mark.parametrize("timeout", [None, 30.0])
async def test_a_waiter_gets_redis_pys_exception_when_trouble_outlasts_its_ttl(
    redis: Redis, proxy: FaultProxy, client: Redis, timeout: float | None
) -> None:
    ttl = 1.0
    async with Lock(redis, "silence"), measured_lag() as lag:
        waiter = asyncio.create_task(outcome_of(lambda: Lock(client, "silence", ttl=ttl).acquire(timeout=timeout)))
        await queued(Lock(redis, "silence"), 1)
        proxy.black_hole = True
        begun = time.monotonic()
        result, _ = await asyncio.wait_for(waiter, timeout=5 * ttl)
        took = time.monotonic() - begun
        proxy.black_hole = False
        proxy.cut_all()
    assert isinstance(result, UNREACHABLE)
    assert not isinstance(result, AcquireTimeoutError)
    # Silence is noticed after a quarter of a second, and an acquire that failed waits a second for its undo.
    assert 0.5 * ttl < took
    assert_within(took, ttl + 0.25 + min(GRACE, ttl) + SLACK * 0.1 + lag.worst)
