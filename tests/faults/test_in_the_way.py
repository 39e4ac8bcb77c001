"""Who held a name at the end of a wait, while replies are lost: to ask that neither delays nor harms anything."""

import asyncio

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lock, LockManager
from aiolocks.testing import FaultProxy
from tests.faults.support.residue import wait_until_only_residue
from tests.support.lateness import SLACK, answered, in_time
from tests.support.primitives import queued


async def too_late(client: Redis, timeout: float) -> AcquireTimeoutError:
    with pytest.raises(AcquireTimeoutError) as caught:
        await Lock(client, "orders", ttl=20).acquire(timeout=timeout)
    return caught.value


async def test_redis_that_falls_silent_delays_no_time_out(redis: Redis, client: Redis, proxy: FaultProxy) -> None:
    async with Lock(redis, "orders", ttl=20):
        waiting = asyncio.create_task(too_late(client, 1.5))
        await queued(Lock(redis, "orders"), 1)
        await asyncio.sleep(1.2)
        proxy.black_hole = True
        async with in_time(0.3 + 1 + 0.5 * SLACK, "the undo has a second"):
            error = await waiting
        assert error.holders is None
        assert str(error).endswith("not granted within 1.5 s: held by another holder")
        proxy.black_hole = False
    await wait_until_only_residue(redis, within=3.0)


async def test_a_lost_reply_to_the_question_costs_no_more(redis: Redis, client: Redis, proxy: FaultProxy) -> None:
    async with Lock(redis, "orders", ttl=20):
        for _ in range(2):
            waiting = asyncio.create_task(too_late(client, 1.3))
            await queued(Lock(redis, "orders"), 1)
            await asyncio.sleep(1.22)
            proxy.cut_all()
            error = await waiting
            assert error.holders is None or len(error.holders) == 1
        assert len(answered((await too_late(client, 1.1)).holders)) == 1
    await wait_until_only_residue(redis, within=2.0)


async def test_a_caller_that_is_cancelled_or_closed_while_it_is_asked_leaves_nothing(
    redis: Redis, client: Redis, proxy: FaultProxy
) -> None:
    async with Lock(redis, "orders", ttl=20):
        proxy.delay_replies = 0.1
        locks = LockManager(client, ttl=20)
        waiting = [asyncio.create_task(locks.lock("orders").acquire(timeout=1.5)) for _ in range(2)]
        await queued(Lock(redis, "orders"), 2)
        await asyncio.sleep(1.36)
        waiting[0].cancel()
        await locks.aclose()
        first, second = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError)
        assert isinstance(second, (RuntimeError, AcquireTimeoutError))
        proxy.delay_replies = 0
    await wait_until_only_residue(redis, within=3.0)
