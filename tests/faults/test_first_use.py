"""The first use of a client over a far server takes few round trips; a timeout says if there was no connection yet."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import HierarchicalLock, Lock
from aiolocks.compat import RedisLock
from aiolocks.testing import FaultProxy
from tests.support.primitives import rows_where

DELAY = 0.1
"""Seconds, each way."""

AT_SEVERAL = {
    "redlock": "it connects to several servers",
    "row of a table": "it takes the levels above it first; the root of a tree stands below",
}

KINDS: dict[str, Callable[[Redis, str], Any]] = {
    **{row.id: row.make for row in rows_where(without=AT_SEVERAL).values()},
    "root of a tree": lambda redis, name: HierarchicalLock(redis, name).write,
    "redis-py's lock": lambda redis, name: redis.lock(name, timeout=10, lock_class=RedisLock),
}


class RoundTrips:
    """Counts them: what is sent together is under way together."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.count = 0
        self._last = 0.0
        proxy.on_request = self._note
        proxy.delay_requests = proxy.delay_replies = DELAY

    def _note(self, request: bytes) -> None:
        now = time.monotonic()
        self.count += now - self._last > DELAY
        self._last = now


@pytest.mark.parametrize("kind", KINDS)
async def test_a_free_lock_is_acquired_in_three_round_trips_of_which_one_connects(proxy: FaultProxy, kind: str) -> None:
    """TCP connects in one, redis-py greets Redis in another."""
    round_trips = RoundTrips(proxy)
    async with Redis.from_url(proxy.url) as redis:
        lock = KINDS[kind](redis, "orders")
        await lock.acquire()
        assert round_trips.count <= 2
        await lock.release()


async def test_redis_hears_of_the_library_as_from_the_users_own_connections(proxy: FaultProxy) -> None:
    requests: list[bytes] = []
    proxy.on_request = requests.append
    async with Redis.from_url(proxy.url) as redis:
        await redis.ping()
        greeted = [request for request in requests if b"SETINFO" in request]
        requests.clear()
        async with Lock(redis, "orders"):
            waiter = asyncio.create_task(Lock(redis, "orders").acquire())
            while proxy.connections_open < 3:  # with that for wake-ups
                await asyncio.sleep(0.002)
        await (await waiter).release()
    assert len(greeted) == 2
    assert [request for request in requests if b"SETINFO" in request] == 2 * greeted


async def test_a_timeout_that_is_over_while_connecting_says_so_and_where_to(proxy: FaultProxy) -> None:
    proxy.black_hole = True
    async with Redis.from_url(proxy.url.replace("redis://", "redis://clerk:secret@")) as redis:
        with pytest.raises(RedisTimeoutError) as caught:
            await Lock(redis, "orders").acquire(timeout=0.3)
    assert str(caught.value) == f"lock 'orders': still connecting to 127.0.0.1:{proxy.port} after 0.3 s"
