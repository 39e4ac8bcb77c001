"""`RLock`: what it adds to a lock. What it shares with every primitive is in the conformance table."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from contextvars import Context
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError, Lock, RLock
from tests.support.lateness import SLACK, in_time
from tests.support.primitives import BRIEF, SHORT, SOON, as_a_stranger, queued
from tests.support.virtual import clock

pytest_plugins = ["tests.support.table"]
pytestmark = pytest.mark.asyncio

LONG = 1.5
"""Seconds of a TTL that the busiest machine renews in time."""


@pytest_asyncio.fixture
async def lock(client: Redis, quick_sessions: None) -> AsyncIterator[RLock]:
    yield RLock(client, "orders", ttl=LONG)


async def free(lock: RLock) -> bool:
    """Whether a task that has nothing to do with this one gets it at once."""
    lease = await as_a_stranger(lock.try_acquire())
    return lease is not None and await lease.release()


async def scripts_run(client: Redis) -> int:
    statistics: dict[str, Any] = await client.info("commandstats")
    return sum(int(statistics.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha"))


async def test_inner_blocks_share_the_lease_and_its_fencing_token(lock: RLock, client: Redis) -> None:
    async with lock as outer, lock as inner, RLock(client, "orders").hold(timeout=0) as third:
        assert {outer.fencing_token, inner.fencing_token, third.fencing_token} == {outer.fencing_token}
        assert (outer.token, outer.token) == (inner.token, third.token)
        assert (await lock.statistics()).holders == 1
    assert await free(lock)


async def test_only_the_outermost_block_releases(lock: RLock) -> None:
    async with lock as outer:
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
            async with lock:
                pass
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


async def test_the_outer_hold_may_be_released_before_the_inner(lock: RLock) -> None:
    outer, inner = await lock.acquire(), await lock.acquire()
    assert await outer.release() is True
    assert (outer.held, inner.held) == (False, True)
    assert await outer.release() is False
    assert not await free(lock)
    await asyncio.sleep(1.2 * LONG)
    assert inner.held, "and it is renewed still"
    assert await inner.release() is True
    assert await free(lock)


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


async def test_a_block_left_in_another_task_releases_its_own_hold(lock: RLock) -> None:
    stack = AsyncExitStack()
    async with lock as outer:
        await stack.enter_async_context(lock)
        await as_a_stranger(stack.aclose())
        assert outer.held
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

    async with lock as lease:
        with pytest.raises(RuntimeError, match="started this one"):
            await asyncio.create_task(child())
        with pytest.raises(RuntimeError):
            await asyncio.create_task(lock.acquire(timeout=None))
        assert await asyncio.create_task(lock.try_acquire()) is None
        with pytest.raises(ExceptionGroup) as group:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(child())
        assert isinstance(group.value.exceptions[0], RuntimeError)
        assert lease.held
        assert (await lock.statistics()).waiting == 0


@pytest.mark.parametrize("timeout", [0, SOON])
@pytest.mark.parametrize("how", ["acquire", "hold", "block"])
async def test_a_child_that_waits_for_a_while_times_out_like_any_other(
    lock: RLock, client: Redis, how: str, timeout: float
) -> None:
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


async def test_a_grandchild_gets_the_error_too(lock: RLock) -> None:
    async def child() -> None:
        await asyncio.create_task(lock.acquire())

    async with lock:
        with pytest.raises(RuntimeError):
            await asyncio.create_task(child())


async def test_a_child_gets_it_once_its_parent_has_let_go(lock: RLock) -> None:
    released = asyncio.Event()

    async def child() -> None:
        await released.wait()
        async with lock:
            pass

    async with lock:
        task = asyncio.create_task(child())
    released.set()
    await task


async def test_a_child_started_before_or_with_a_context_of_its_own_waits_like_any_other(lock: RLock) -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        async with lock:
            pass

    tasks = [asyncio.create_task(work())]
    async with lock:
        tasks.append(asyncio.create_task(work(), context=Context()))
        await queued(lock, 2)
    await asyncio.gather(*tasks)


async def test_what_a_task_that_has_ended_still_holds_is_waited_for(lock: RLock) -> None:
    async def take() -> tuple[Lease, "asyncio.Task[Lease]"]:
        lease = await lock.acquire()
        return lease, asyncio.create_task(wait_for_it())

    async def wait_for_it() -> Lease:
        await asyncio.sleep(0.01)
        return await lock.acquire(timeout=5)

    lease, waiter = await asyncio.create_task(take())
    await queued(lock, 1)
    await lease.release()
    await (await waiter).release()


async def test_two_tasks_exclude_each_other(lock: RLock) -> None:
    inside = 0

    async def work() -> None:
        nonlocal inside
        for _ in range(5):
            async with lock, lock:
                inside += 1
                await asyncio.sleep(0)
                assert inside == 1
                inside -= 1

    await asyncio.gather(*(work() for _ in range(4)))


async def test_a_lock_of_the_same_name_is_another_one(lock: RLock, client: Redis) -> None:
    async with lock, Lock(client, "orders").hold(timeout=0) as lease:
        assert lease.held


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


async def test_a_loss_marks_every_hold_at_once(lock: RLock, client: Redis) -> None:
    leases = [await lock.acquire() for _ in range(3)]
    waits = [asyncio.create_task(lease.wait_lost()) for lease in leases]
    await client.flushdb()
    assert await asyncio.gather(*waits) == [True] * 3
    assert [lease.lost for lease in leases] == [True] * 3
    assert [await lease.release() for lease in leases] == [False] * 3


async def test_a_renewal_by_hand_that_finds_the_loss_marks_every_hold(client: Redis, quick_sessions: None) -> None:
    lock = RLock(client, "orders")
    outer, inner = await lock.acquire(), await lock.acquire()
    await client.flushdb()
    assert await inner.renew() is False
    assert outer.lost
    assert [await outer.release(), await inner.release()] == [False, False]


async def test_a_renewal_by_hand_extends_every_hold(lock: RLock) -> None:
    outer, inner = await lock.acquire(), await lock.acquire()
    assert await inner.renew(30) is True
    assert outer.remaining() > 20
    await outer.release()
    await inner.release()


async def test_a_block_within_a_lost_one_does_not_begin(client: Redis, quick_sessions: None) -> None:
    lock = RLock(client, "orders", ttl=BRIEF, renew=False, on_lost="flag")
    async with lock as outer:
        await outer.wait_lost()
        with pytest.raises(LeaseLostError):
            async with lock:
                pytest.fail("the body ran")
        with pytest.raises(LeaseLostError):
            await lock.try_acquire()


async def test_a_lease_by_hand_that_was_lost_is_no_obstacle(client: Redis, quick_sessions: None) -> None:
    lost = await RLock(client, "orders", ttl=BRIEF, renew=False).acquire()
    await lost.wait_lost()
    async with RLock(client, "orders") as lease:
        assert lease.fencing_token > lost.fencing_token
        assert await lost.release() is False
        assert lease.held


async def test_each_block_says_itself_what_a_loss_does_to_it(client: Redis, quick_sessions: None) -> None:
    async with RLock(client, "orders", ttl=SHORT, on_lost="flag") as outer:
        with pytest.raises(LeaseLostError):
            async with RLock(client, "orders", on_lost="cancel"):
                await client.flushdb()
                await asyncio.sleep(10)
        await asyncio.sleep(0)
        assert outer.lost


async def test_a_block_within_a_lease_that_is_not_renewed_is_stopped_at_its_deadline(
    client: Redis, quick_sessions: None
) -> None:
    async with RLock(client, "orders", ttl=BRIEF, renew=False, on_lost="flag"):
        with pytest.raises(LeaseLostError):
            async with RLock(client, "orders"):
                await asyncio.sleep(10)


async def test_a_hold_that_was_dropped_warns_and_lets_the_lease_lapse_after_the_others(client: Redis) -> None:
    lock = RLock(client, "orders", ttl=1)  # until it is noticed that nobody refers to the lease
    async with lock as lease:
        pass
    kept = await as_a_stranger(lock.acquire())

    async def forget() -> None:
        async with kept:
            await lock.acquire()

    async def let_it_lapse() -> None:
        await as_a_stranger(forget())
        gc.collect()
        await asyncio.sleep(0)
        assert not kept.held
        assert not await free(lock)
        async with asyncio.timeout(5):
            async with lock as next_one:
                assert next_one.fencing_token > lease.fencing_token

    with pytest.warns(ResourceWarning, match="without being released"):
        await let_it_lapse()


async def test_a_wait_for_another_task_still_times_out(lock: RLock) -> None:
    holder = await as_a_stranger(lock.acquire())
    with pytest.raises(AcquireTimeoutError):
        async with lock.hold(timeout=SOON):
            pytest.fail("the body ran")
    assert await lock.try_acquire() is None
    await holder.release()


@pytest.mark.real_time
@pytest.mark.parametrize("watchdog", ["task", "thread"])
async def test_both_watchdogs_keep_all_holds(client: Redis, quick_sessions: None, watchdog: Any) -> None:
    async with RLock(client, "orders", ttl=LONG, watchdog=watchdog) as outer, RLock(client, "orders") as inner:
        await asyncio.sleep(1.2 * LONG)
        assert (outer.held, inner.held) == (True, True)
