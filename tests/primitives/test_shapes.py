"""Blocks in other people's shapes: exit stacks, generators, wrapper classes, scopes and tasks that end too soon."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

import anyio
import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError, Lock, Semaphore
from tests.support.lateness import SLACK, assert_within, in_time, measured_lag
from tests.support.primitives import SHORT, SOON, Acquirable, Make, as_a_stranger, free, not_reentrant

T = TypeVar("T")

Work = Callable[[], Awaitable[None]]

Shape = Callable[[Acquirable, Work], Coroutine[Any, Any, None]]

LONG = 10.0
"""Seconds that nothing here lasts."""

DROPPED = 1.0
"""Seconds of a TTL that lasts until it is noticed that nobody refers to the lease, also on a busy machine."""


async def holding(lock: Acquirable) -> AsyncGenerator[Lease]:
    async with lock as lease:
        yield lease


# Blocks whose body's task is known though another one awaited their entry.


@pytest.mark.parametrize("of", ["lock", "hold", "lease"])
async def test_a_block_is_stopped_though_a_task_of_its_own_awaited_its_entry(make: Make, of: str) -> None:
    """As `asyncio.wait_for` does before Python 3.12."""
    lock = make(ttl=SHORT)
    block = await lock.acquire() if of == "lease" else lock.hold() if of == "hold" else lock
    await asyncio.create_task(block.__aenter__())
    with pytest.raises(LeaseLostError):
        try:
            await make.take_away()
            await asyncio.sleep(LONG)
        except asyncio.CancelledError as error:
            await block.__aexit__(type(error), error, error.__traceback__)


# Which block is left.


async def test_what_was_looked_up_once_leaves_the_block_of_a_later_try(redis: Redis) -> None:
    lock = Lock(redis, "orders", acquire_timeout=0)
    taken = await as_a_stranger(lock.acquire())
    leave = lock.__aexit__
    with pytest.raises(AcquireTimeoutError):
        await lock.__aenter__()
    await taken.release()
    lease = await lock.__aenter__()
    await leave(None, None, None)
    assert not lease.held


async def test_a_look_at_the_method_is_no_block(redis: Redis) -> None:
    semaphore = Semaphore(redis, "scraper", 3)
    kept = semaphore.__aexit__  # of another task than the one that enters
    lease = await as_a_stranger(semaphore.__aenter__())
    assert hasattr(semaphore, "__aexit__")
    async with semaphore as own:
        pass
    assert (lease.held, own.held) == (True, False)
    await kept(None, None, None)  # the only one that no `async with` has
    assert not lease.held


# Scopes and time-outs, nested and left in any order.


async def fail_after_around_entering(lock: AbstractAsyncContextManager[Lease], work: Work) -> None:
    async with AsyncExitStack() as stack:
        with anyio.fail_after(LONG):
            await stack.enter_async_context(lock)
        await work()


async def fail_after_around_anext(lock: Acquirable, work: Work) -> None:
    generator = holding(lock)
    with anyio.fail_after(LONG):
        await anext(generator)
    try:
        await work()
    except asyncio.CancelledError as cancelled:
        await generator.athrow(cancelled)
    await generator.aclose()


async def aclose_inside_an_inner_scope(lock: Acquirable, work: Work) -> None:
    generator = holding(lock)
    await anext(generator)
    with anyio.CancelScope():
        try:
            await work()
        except asyncio.CancelledError as cancelled:
            await generator.athrow(cancelled)
        await generator.aclose()


async def move_on_after_around_closing(lock: Acquirable, work: Work) -> None:
    stack = AsyncExitStack()
    await stack.enter_async_context(lock)
    error: BaseException | None = None
    try:
        await work()
    except asyncio.CancelledError as cancelled:
        error = cancelled
    with anyio.move_on_after(LONG):
        await stack.__aexit__(type(error) if error else None, error, None)


async def entering_an_outer_stack_in_a_task_group(lock: Acquirable, work: Work) -> None:
    async with AsyncExitStack() as stack:
        async with anyio.create_task_group():
            await stack.enter_async_context(lock)
        await work()


async def an_outer_stack_in_a_task_group_that_goes_on(lock: Acquirable, work: Work) -> None:
    async with AsyncExitStack() as stack:
        async with anyio.create_task_group():
            await stack.enter_async_context(lock)
            await work()


SHAPES: list[Shape] = [
    fail_after_around_entering, lambda lock, work: fail_after_around_entering(lock.hold(), work),
    fail_after_around_anext, aclose_inside_an_inner_scope, move_on_after_around_closing,
    entering_an_outer_stack_in_a_task_group, an_outer_stack_in_a_task_group_that_goes_on,
]  # fmt: skip


@pytest.mark.rest
@pytest.mark.parametrize("shape", SHAPES)
async def test_scopes_may_be_left_in_any_order(redis: Redis, shape: Shape) -> None:
    lock = Lock(redis, "orders")
    worked = []

    async def work() -> None:
        worked.append(await lock.locked())

    await shape(lock, work)
    assert worked == [True]
    assert not await lock.locked()


@pytest.mark.rest
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_loss_stops_the_body_in_any_order_of_scopes(redis: Redis, shape: Shape) -> None:
    task = asyncio.current_task()
    assert task is not None

    async def work() -> None:
        await redis.delete("aiolocks:lock:{orders}")
        await asyncio.sleep(LONG)

    with pytest.raises(LeaseLostError):
        await shape(Lock(redis, "orders", ttl=SHORT), work)
    assert task.cancelling() == 0
    await asyncio.sleep(0.01)


async def test_a_body_of_many_short_commands_is_stopped_soon(redis: Redis) -> None:
    """`asyncio.wait_for` before Python 3.12 swallows many a cancellation, and redis-py writes with it."""
    lock = Lock(redis, "orders", ttl=SHORT)
    lost = 0.0
    loop = asyncio.get_running_loop()
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError):
            async with lock as lease:
                await redis.delete("aiolocks:lock:{orders}")
                while True:
                    await redis.get("aiolocks")
                    if lease.lost and not lost:
                        lost = loop.time()
                    assert_within(loop.time() - (lost or loop.time()), SLACK * 0.15 + lag.worst, "it works on")
    assert lease.lost


# Leases to which only a finished task refers.


async def crashed(lock: Acquirable) -> None:
    async def crash() -> None:
        lease = await lock.acquire()
        raise LookupError(lease)

    with contextlib.suppress(LookupError):
        await as_a_stranger(crash())


async def dropped(lock: Acquirable) -> None:
    await asyncio.wait([as_a_stranger(lock.acquire())])


async def fail() -> None:
    await asyncio.sleep(0.1)
    raise LookupError


async def beside_a_failing_sibling(lock: Acquirable) -> None:
    with contextlib.suppress(LookupError):
        await asyncio.gather(lock.acquire(), fail())


async def in_a_group_with_a_failing_sibling(lock: Acquirable) -> None:
    with contextlib.suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(lock.acquire())
            group.create_task(fail())


async def an_exit_stack_that_is_dropped(lock: Acquirable) -> None:
    await as_a_stranger(AsyncExitStack().enter_async_context(lock))


@pytest.mark.rest
@pytest.mark.parametrize("watchdog", ["task", "thread"])
@pytest.mark.parametrize(
    "take",
    [crashed, dropped, beside_a_failing_sibling, in_a_group_with_a_failing_sibling, an_exit_stack_that_is_dropped],
)
async def test_a_lease_to_which_only_a_finished_task_refers_lapses(
    redis: Redis, take: Callable[[Acquirable], Coroutine[Any, Any, None]], watchdog: Any
) -> None:
    lock = Lock(redis, "orders", ttl=DROPPED, watchdog=watchdog)

    async def let_it_lapse() -> None:
        await take(lock)
        gc.collect()
        await free(lock)
        await asyncio.sleep(0.05)

    with pytest.warns(ResourceWarning, match="without being released"):
        await let_it_lapse()


# try_acquire() and locked(): coroutines that cannot be taken for their answers.


async def test_a_call_of_a_primitive_without_await_is_never_taken_for_its_answer(make: Make) -> None:
    lock = make()
    for verb in ("acquire", "try_acquire", "locked"):
        call = getattr(lock, verb)()
        with pytest.raises(TypeError, match=rf"{verb}\(\) must be awaited.*: use `.*await lock\.{verb}\(\)"):
            bool(call)
        call.close()
        with pytest.warns(RuntimeWarning, match=rf"{verb}' was never awaited"):
            getattr(lock, verb)()


# hold() after an entry that failed.


@pytest.mark.rest
@pytest.mark.parametrize("begun", [True, False])
async def test_a_hold_whose_entry_was_destroyed_can_be_entered_again(redis: Redis, begun: bool) -> None:
    lock = Lock(redis, "orders", ttl=DROPPED)
    lease = await as_a_stranger(lock.acquire())
    block = lock.hold(timeout=SOON)
    entering = block.__aenter__()
    if begun:
        entering.send(None)
    entering.close()
    await lease.release()
    async with block as entered:
        assert entered.held


def driven(coroutine: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
    """Run *coroutine* by callbacks alone, in no task, as code that has been compiled to them may."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def step(_: object = None) -> None:
        try:
            waits_for = coroutine.send(None)
        except StopIteration as ended:
            done.set_result(ended.value)
        except BaseException as error:
            done.set_exception(error)
        else:
            if waits_for is None:
                loop.call_soon(step)
            else:
                waits_for.add_done_callback(step)

    loop.call_soon(step)
    return done


async def test_a_hold_may_be_entered_where_no_task_runs_and_again_in_one(make: Make) -> None:
    block = make().hold()
    lease = await driven(block.__aenter__())
    assert lease.held
    await driven(block.__aexit__(None, None, None))
    async with block as again:
        assert again.held


# release() by the habits of asyncio.


async def test_release_finds_what_a_task_took_that_has_ended(make: Make) -> None:
    lock = make()
    await asyncio.gather(lock.acquire())
    await lock.release()
    assert await lock.locked() is False
    async with in_time(SLACK * 0.3, "it waits for one to turn up"):
        with pytest.raises(RuntimeError, match="no lease to release"):
            await lock.release()


# A block whose lease is over.


@not_reentrant
async def test_a_task_may_enter_again_what_it_released_or_lost_in_its_block(make: Make) -> None:
    async with make() as lease:
        await lease.release()
        async with make() as again:
            assert again.held
        once_more = await make().try_acquire()
        assert once_more is not None
        await once_more.release()
    async with make(ttl=SHORT, on_lost="flag") as lease:
        await make.take_away()
        assert await lease.wait_lost()
        async with make() as again:
            assert again.held
