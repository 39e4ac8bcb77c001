"""`RLock`: what it adds to a lock. What it shares with every primitive is in the conformance table."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from contextvars import Context

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError, RLock
from tests.support.lateness import SLACK, in_time
from tests.support.primitives import SOON, as_a_stranger, enter, queued, scripts_run
from tests.support.virtual import clock

LONG = 1.5
"""Seconds of a TTL that the busiest machine renews in time."""


@pytest_asyncio.fixture
async def lock(client: Redis, quick_sessions: None) -> AsyncIterator[RLock]:
    yield RLock(client, "orders", ttl=LONG)


async def free(lock: RLock) -> bool:
    """Whether a task that has nothing to do with this one gets it at once."""
    lease = await as_a_stranger(lock.try_acquire())
    return lease is not None and await lease.release()


async def test_inner_blocks_share_the_lease_and_only_the_outermost_releases_it(lock: RLock, client: Redis) -> None:
    async with lock as outer, lock as inner, RLock(client, "orders").hold(timeout=0) as third:
        assert {outer.fencing_token, inner.fencing_token, third.fencing_token} == {outer.fencing_token}
        assert (outer.token, outer.token) == (inner.token, third.token)
        assert (await lock.statistics()).holders == 1
        async with lock as inner:
            assert not await free(lock)
        assert (inner.held, inner.lost, outer.held) == (False, False, True)
        assert not await free(lock)
    assert await free(lock)


@pytest.mark.redis
async def test_taking_it_again_and_letting_go_of_it_asks_nothing_of_the_server(redis: Redis) -> None:
    lock = RLock(redis, "orders")
    async with lock:
        before = await scripts_run(redis)
        for _ in range(10):
            await enter(lock)
            assert await (await lock.acquire()).release() is True
        assert await scripts_run(redis) == before


async def test_its_holder_gets_it_at_once_though_others_wait(lock: RLock) -> None:
    async with lock as outer:
        waiter = as_a_stranger(lock.acquire())
        await queued(lock, 1)
        async with lock.hold(timeout=0) as inner:
            assert inner.held
        tried = await lock.try_acquire()
        assert tried is not None
        await tried.release()
        assert not waiter.done()
    other = await waiter
    assert other.fencing_token > outer.fencing_token
    await other.release()


async def test_holds_by_hand_nest(lock: RLock) -> None:
    for _ in range(3):
        await lock.acquire(timeout=0)
    for _ in range(2):
        await lock.release()
        assert not await free(lock)
    await lock.release()
    assert await free(lock)
    with pytest.raises(RuntimeError):
        await lock.release()


async def test_blocks_left_in_the_order_of_entering_hold_until_the_last_is_left(lock: RLock) -> None:
    outer, inner = AsyncExitStack(), AsyncExitStack()
    await outer.enter_async_context(lock)
    lease = await inner.enter_async_context(lock)
    await outer.aclose()
    assert lease.held
    assert not await free(lock)
    await inner.aclose()
    assert await free(lock)


async def test_a_task_can_take_an_rlock_again_in_a_block_whose_lease_was_released_by_hand(lock: RLock) -> None:
    async with lock as first:
        await first.release()
        assert await free(lock)
        async with lock.hold(timeout=5) as second:
            assert second.fencing_token > first.fencing_token
            assert not await free(lock)
    assert await free(lock)


async def test_a_task_that_has_entered_a_lease_holds_the_lock(lock: RLock) -> None:
    async def work(lease: Lease) -> None:
        async with lease, lock.hold(timeout=0) as inner:
            assert inner.fencing_token == lease.fencing_token

    await as_a_stranger(work(await lock.acquire()))
    await asyncio.create_task(work(await lock.acquire()))
    assert await free(lock)


async def test_a_child_that_would_wait_for_its_parent_gets_an_error_instead(lock: RLock) -> None:
    async def child() -> None:
        async with lock:
            pytest.fail("the body ran")

    async def grandchild() -> None:
        await asyncio.create_task(child())

    async with lock as lease:
        with pytest.raises(RuntimeError, match="started this one"):
            await asyncio.create_task(child())
        with pytest.raises(RuntimeError):
            await asyncio.create_task(lock.acquire(timeout=None))
        with pytest.raises(RuntimeError):
            await asyncio.create_task(grandchild())
        assert await asyncio.create_task(lock.try_acquire()) is None
        with pytest.raises(ExceptionGroup) as group:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(child())
        assert isinstance(group.value.exceptions[0], RuntimeError)
        assert lease.held
        assert (await lock.statistics()).waiting == 0


@pytest.mark.parametrize("timeout", [0, SOON])
@pytest.mark.parametrize("how", ["acquire", "hold", "block"])
async def test_a_waiting_child_times_out_like_any_other(lock: RLock, client: Redis, how: str, timeout: float) -> None:
    """It would not wait for ever."""
    impatient = RLock(client, "orders", ttl=LONG, acquire_timeout=timeout)

    async def child() -> None:
        if how == "acquire":
            await lock.acquire(timeout=timeout)
        else:
            async with lock.hold(timeout=timeout) if how == "hold" else impatient:
                pytest.fail("the body ran")

    async with lock as lease:
        begun = clock()
        async with in_time(timeout + SLACK * 0.2):
            with pytest.raises(AcquireTimeoutError) as caught:
                await asyncio.create_task(child())
        assert timeout <= clock() - begun
        assert caught.value.timeout == timeout
        assert lease.held
        assert (await lock.statistics()).waiting == 0


async def test_a_child_that_waits_for_a_while_gets_it_when_its_parent_lets_go_in_time(lock: RLock) -> None:
    async with lock as lease:
        child = asyncio.create_task(lock.acquire(timeout=5))
        await queued(lock, 1)
    got = await child
    assert got.fencing_token > lease.fencing_token
    await got.release()


async def test_a_child_started_before_or_with_its_own_context_waits_like_any_other(lock: RLock, client: Redis) -> None:
    held = asyncio.Event()

    async def work() -> None:
        await held.wait()
        await enter(lock)

    async def start() -> None:
        async with RLock(client, "customers"):
            await asyncio.create_task(work())

    tasks = [asyncio.create_task(work())]
    async with RLock(client, "stock"):
        tasks.append(asyncio.create_task(work()))
        async with lock:
            tasks += [asyncio.create_task(each(), context=Context()) for each in (work, start)]
            held.set()
            await queued(lock, 4)
    await asyncio.gather(*tasks)


async def test_a_child_that_starts_as_its_parent_ends_waits_like_any_other(lock: RLock) -> None:
    async def parent() -> tuple[Lease, asyncio.Task[Lease]]:
        return await lock.acquire(), asyncio.create_task(lock.acquire())

    lease, child = await asyncio.create_task(parent())
    await queued(lock, 1)
    await lease.release()
    await (await child).release()


async def test_a_child_waits_for_a_task_to_which_its_parent_has_given_the_lock(lock: RLock) -> None:
    async def take_over(lease: Lease) -> Lease:
        async with lease:
            return await lock.acquire()

    async def work(lease: Lease, released: asyncio.Event) -> None:
        own = await take_over(lease)
        await released.wait()
        await own.release()

    released = asyncio.Event()
    other = asyncio.create_task(work(await lock.acquire(), released))
    await asyncio.sleep(0.05)
    child = asyncio.create_task(lock.acquire())
    await queued(lock, 1)
    released.set()
    await (await child).release()
    await other


# Losses.


async def test_a_loss_stops_every_block_once_and_is_an_error_of_the_outermost(lock: RLock, client: Redis) -> None:
    stopped = []
    with pytest.raises(LeaseLostError) as lost:
        async with lock as outer:
            try:
                async with lock:
                    try:
                        async with lock:
                            await client.flushdb()
                            await asyncio.sleep(10)
                    except BaseException as error:
                        stopped.append(error)
                        raise
            except BaseException as error:
                stopped.append(error)
                raise
    assert all(isinstance(error, (asyncio.CancelledError, LeaseLostError)) for error in stopped)
    assert len(stopped) == 2
    assert lost.value.fencing_token == outer.fencing_token
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)
