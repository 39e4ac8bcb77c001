"""Blocks in other people's shapes: exit stacks, generators, wrapper classes, scopes and tasks that end too soon."""

import asyncio
import contextlib
import gc
import inspect
import logging
import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import FrameType, TracebackType
from typing import Any, TypeVar, cast, final

import anyio
import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError, Lock, Semaphore
from tests.support.cases import the_rest_slow
from tests.support.inside import block_loop
from tests.support.lateness import SLACK, assert_within, in_time, measured_lag
from tests.support.primitives import (
    SHORT,
    SOON,
    WITH_ONE_PLACE,
    Acquirable,
    Make,
    as_a_stranger,
    every_row,
    free,
    not_reentrant,
    until,
)

pytest_plugins = ["tests.support.table"]
pytestmark = pytest.mark.asyncio

T = TypeVar("T")

LONG = 10.0
"""Seconds that nothing here lasts."""

DROPPED = 1.0
"""Seconds of a TTL that lasts until it is noticed that nobody refers to the lease, also on a busy machine."""


async def holding(lock: Acquirable) -> AsyncGenerator[Lease]:
    async with lock as lease:
        yield lease


@final
class Delegating:
    """What many write around a lock: a class that calls both methods by itself."""

    def __init__(self, lock: Acquirable) -> None:
        self._lock = lock

    async def __aenter__(self) -> Lease:
        return await self._lock.__aenter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._lock.__aexit__(exc_type, exc, traceback)


async def delegating(lock: Acquirable) -> AsyncGenerator[Lease]:
    async with Delegating(lock) as lease:
        yield lease


async def logged(caplog: pytest.LogCaptureFixture, level: int, text: str) -> list[str]:
    """Wait for a log line, and return all of that level."""

    async def there() -> bool:
        return any(text in record.getMessage() for record in caplog.records if record.levelno == level)

    await until(there)
    return [record.getMessage() for record in caplog.records if record.levelno == level]


# Blocks whose body's task is known though another one awaited their entry.


async def entered_elsewhere(entry: Coroutine[Any, Any, Lease]) -> Lease:
    return await asyncio.create_task(entry)


@not_reentrant
async def test_a_block_is_stopped_though_a_task_of_its_own_awaited_its_entry(make: Make) -> None:
    """As `asyncio.wait_for` does before Python 3.12."""
    lock = make(ttl=SHORT)
    entry = lock.__aenter__()
    with pytest.raises(LeaseLostError):
        await body_of(await entered_elsewhere(entry), lock, make)


async def body_of(lease: Lease, lock: Acquirable, make: Make) -> None:
    try:
        await make.take_away()
        await asyncio.sleep(LONG)
    except BaseException as error:
        await lock.__aexit__(type(error), error, error.__traceback__)
        raise
    pytest.fail("it was not stopped")


@pytest.mark.parametrize("of", ["hold", "lease"])
async def test_hold_and_lease_are_stopped_though_a_task_of_its_own_awaited_the_entry(make: Make, of: str) -> None:
    lock = make(ttl=SHORT)
    block = lock.hold() if of == "hold" else await lock.acquire()
    await asyncio.create_task(block.__aenter__())
    with pytest.raises(LeaseLostError):
        try:
            await make.take_away()
            await asyncio.sleep(LONG)
        except asyncio.CancelledError as error:
            await block.__aexit__(type(error), error, error.__traceback__)


# Blocks whose entering task has ended.


async def test_a_block_whose_entering_task_has_ended_tells_of_its_loss(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    stack = AsyncExitStack()
    (lease,) = await asyncio.gather(stack.enter_async_context(make(ttl=SHORT)))
    await make.take_away()
    (line,) = await logged(caplog, logging.ERROR, "lost")
    assert "task that has ended" in line
    assert make.called("orders") in line
    assert lease.token not in line
    with pytest.raises(LeaseLostError):
        await stack.aclose()


async def test_a_task_that_ends_with_its_block_open_is_warned_of(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    stack = AsyncExitStack()
    await asyncio.gather(stack.enter_async_context(make()))
    (line,) = await logged(caplog, logging.WARNING, "block is still open")
    assert make.called("orders") in line
    await stack.aclose()
    await free(make())


async def test_a_block_left_soon_after_its_task_was_stopped_is_not_warned_of(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    stack = AsyncExitStack()

    async def enter() -> None:
        await stack.enter_async_context(make(ttl=SHORT))
        await make.take_away()
        await asyncio.sleep(LONG)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(enter())
    await asyncio.sleep(0.1)
    with pytest.raises(LeaseLostError):
        await stack.aclose()
    await asyncio.sleep(1.2)
    (loss,) = [record.getMessage() for record in caplog.records]
    assert "stop acting on it" in loss


async def test_a_fixture_is_not_warned_of(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    generator = holding(Lock(redis, "orders"))
    await asyncio.create_task(first(generator))
    await asyncio.create_task(generator.aclose())
    await asyncio.sleep(1.2)
    assert not caplog.records


async def first(generator: AsyncIterator[T]) -> T:
    return await anext(generator)


# Which block is left.


async def test_an_abandoned_generator_with_a_wrapper_class_leaves_its_own_block(redis: Redis) -> None:
    semaphore = Semaphore(redis, "scraper", 3)
    entered = asyncio.Event()
    done = asyncio.Event()

    async def work() -> bool:
        async with Delegating(semaphore) as lease:
            entered.set()
            await done.wait()
            return lease.held

    other = asyncio.create_task(work())
    await entered.wait()
    abandoned = []
    async for lease in delegating(semaphore):
        abandoned.append(lease)
        break
    gc.collect()
    await until_over(abandoned[0])
    done.set()
    assert await other
    assert (await semaphore.statistics()).holders == 0


async def until_over(lease: Lease) -> None:
    async def over() -> bool:
        return not lease.held

    await until(over)


@every_row
async def test_wrapper_classes_leave_their_own_blocks_in_any_order(make: Make) -> None:
    lock = make()
    generators = [delegating(lock) for _ in range(make.places)]
    leases = [await anext(generator) for generator in generators]
    for closed, generator in enumerate(generators):
        await asyncio.create_task(generator.aclose())
        assert [lease.held for lease in leases] == [at > closed for at in range(make.places)]
    assert (await lock.statistics()).holders == 0


@every_row
async def test_what_pop_all_took_over_is_left_where_it_is_closed(make: Make) -> None:
    lock = make()
    stacks, leases = [], []
    for _ in range(make.places):
        async with AsyncExitStack() as stack:
            leases.append(await stack.enter_async_context(lock))
            stacks.append(stack.pop_all())
    for closed, stack in enumerate(stacks):
        await asyncio.create_task(stack.aclose())
        assert [lease.held for lease in leases] == [at > closed for at in range(make.places)]


async def test_a_stack_closed_inside_a_block_of_the_same_object_leaves_its_own(redis: Redis) -> None:
    semaphore = Semaphore(redis, "scraper", 3)
    stack = AsyncExitStack()
    outer = await stack.enter_async_context(semaphore)
    async with semaphore as inner:
        await stack.aclose()
        assert (outer.held, inner.held) == (False, True)
    assert not inner.held


async def test_where_it_cannot_be_told_no_block_is_left(redis: Redis) -> None:
    """Two levels of wrappers: no frame tells, and each task has two blocks."""
    semaphore = Semaphore(redis, "scraper", 3)
    blocks = [Delegating(Delegating(semaphore)) for _ in range(2)]  # type: ignore[arg-type]
    leases = [await block.__aenter__() for block in blocks]
    with pytest.raises(RuntimeError, match=r"hold\(\)"):
        await blocks[0].__aexit__(None, None, None)
    assert all(lease.held for lease in leases)
    for lease in leases:
        await lease.release()


async def test_a_block_is_not_left_twice(redis: Redis) -> None:
    semaphore = Semaphore(redis, "scraper", 3)
    leave = semaphore.__aexit__
    await semaphore.__aenter__()
    async with Delegating(semaphore) as lease:
        await leave(None, None, None)
        with pytest.raises(RuntimeError, match="left already"):
            await leave(None, None, None)
        assert lease.held


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
    lease = await as_a_stranger(Delegating(semaphore).__aenter__())
    assert hasattr(semaphore, "__aexit__")
    async with semaphore as own:
        pass
    assert (lease.held, own.held) == (True, False)
    await kept(None, None, None)  # the only one that no `async with` has
    assert not lease.held


async def test_leaving_a_wrapped_block_looks_at_no_other(redis: Redis) -> None:
    few, many = await calls_while_leaving(redis, 5), await calls_while_leaving(redis, 200)
    assert few
    assert (many - few).total() < 20, "it grows with the 195 others"


async def calls_while_leaving(redis: Redis, count: int) -> Counter[str]:
    """Return the number of calls in each function of the engine: calls of it, and calls that it makes."""
    semaphore = Semaphore(redis, f"scraper:{count}", 1000)
    generators = [delegating(semaphore) for _ in range(count)]
    for generator in generators:
        await anext(generator)
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call") and f"{os.sep}_engine{os.sep}" in frame.f_code.co_filename:
            calls[frame.f_code.co_qualname] += 1

    leaving = generators[count // 2].aclose()
    sys.setprofile(note)
    with contextlib.suppress(StopIteration):
        leaving.send(None)
    sys.setprofile(None)
    leaving.close()
    for generator in generators:
        with contextlib.suppress(RuntimeError):
            await generator.aclose()
    await free(semaphore)
    return calls


# Scopes and time-outs, nested and left in any order.


async def fail_after_around_entering(lock: Acquirable, work: Callable[[], Awaitable[None]]) -> None:
    async with AsyncExitStack() as stack:
        with anyio.fail_after(LONG):
            await stack.enter_async_context(lock)
        await work()


async def fail_after_around_entering_a_hold(lock: Acquirable, work: Callable[[], Awaitable[None]]) -> None:
    async with AsyncExitStack() as stack:
        with anyio.fail_after(LONG):
            await stack.enter_async_context(lock.hold())
        await work()


async def fail_after_around_anext(lock: Acquirable, work: Callable[[], Awaitable[None]]) -> None:
    generator = holding(lock)
    with anyio.fail_after(LONG):
        await anext(generator)
    try:
        await work()
    except asyncio.CancelledError as cancelled:
        await generator.athrow(cancelled)
    await generator.aclose()


async def aclose_inside_an_inner_scope(lock: Acquirable, work: Callable[[], Awaitable[None]]) -> None:
    generator = holding(lock)
    await anext(generator)
    with anyio.CancelScope():
        try:
            await work()
        except asyncio.CancelledError as cancelled:
            await generator.athrow(cancelled)
        await generator.aclose()


async def move_on_after_around_closing(lock: Acquirable, work: Callable[[], Awaitable[None]]) -> None:
    stack = AsyncExitStack()
    await stack.enter_async_context(lock)
    error: BaseException | None = None
    try:
        await work()
    except asyncio.CancelledError as cancelled:
        error = cancelled
    with anyio.move_on_after(LONG):
        await stack.__aexit__(type(error) if error else None, error, None)


async def entering_an_outer_stack_in_a_task_group(lock: Acquirable, work: Callable[[], Awaitable[None]]) -> None:
    async with AsyncExitStack() as stack:
        async with anyio.create_task_group():
            await stack.enter_async_context(lock)
        await work()


async def an_outer_stack_in_a_task_group_that_goes_on(lock: Acquirable, work: Callable[[], Awaitable[None]]) -> None:
    async with AsyncExitStack() as stack:
        async with anyio.create_task_group():
            await stack.enter_async_context(lock)
            await work()


SHAPES = [
    fail_after_around_entering,
    fail_after_around_entering_a_hold,
    fail_after_around_anext,
    aclose_inside_an_inner_scope,
    move_on_after_around_closing,
    entering_an_outer_stack_in_a_task_group,
    an_outer_stack_in_a_task_group_that_goes_on,
]


@pytest.mark.parametrize("shape", SHAPES)
async def test_scopes_may_be_left_in_any_order(redis: Redis, shape: Callable[..., Coroutine[Any, Any, None]]) -> None:
    lock = Lock(redis, "orders")
    worked = []

    async def work() -> None:
        worked.append(await lock.locked())

    await shape(lock, work)
    assert worked == [True]
    assert not await lock.locked()


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_loss_stops_the_body_in_any_order_of_scopes(
    redis: Redis, shape: Callable[..., Coroutine[Any, Any, None]]
) -> None:
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


async def crash(lock: Acquirable) -> None:
    lease = await lock.acquire()
    raise LookupError(lease)


async def crashed(lock: Acquirable) -> None:
    with contextlib.suppress(LookupError):
        await as_a_stranger(crash(lock))


async def dropped(lock: Acquirable) -> None:
    task = as_a_stranger(lock.acquire())
    while not task.done():
        await asyncio.sleep(0.001)


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


async def lapses(take: Callable[[Acquirable], Coroutine[Any, Any, None]], lock: Acquirable) -> None:
    async def let_it_lapse() -> None:
        await take(lock)
        gc.collect()
        await free(lock)
        await asyncio.sleep(0.05)

    with pytest.warns(ResourceWarning, match="without being released"):
        await let_it_lapse()


@pytest.mark.parametrize("watchdog", ["task", "thread"])
@pytest.mark.parametrize(
    "take",
    [crashed, dropped, beside_a_failing_sibling, in_a_group_with_a_failing_sibling, an_exit_stack_that_is_dropped],
)
async def test_a_lease_to_which_only_a_finished_task_refers_lapses(
    redis: Redis, take: Callable[[Acquirable], Coroutine[Any, Any, None]], watchdog: Any
) -> None:
    await lapses(take, Lock(redis, "orders", ttl=DROPPED, watchdog=watchdog))


@pytest.mark.parametrize("take", the_rest_slow([crashed, an_exit_stack_that_is_dropped], quick=1))
async def test_a_lease_of_any_kind_to_which_only_a_finished_task_refers_lapses(
    make: Make, take: Callable[[Acquirable], Coroutine[Any, Any, None]]
) -> None:
    await lapses(take, make(ttl=DROPPED))


@pytest.mark.parametrize("row", the_rest_slow(WITH_ONE_PLACE, quick=2), ids=str, indirect=True)
async def test_a_lease_of_an_ended_task_does_not_lapse_in_silence_when_the_loop_is_late(make: Make) -> None:
    async def let_it_lapse() -> None:
        await crashed(make(ttl=SHORT))
        gc.collect()
        block_loop(1.5 * SHORT)  # so that the loop finds it dropped and lapsed at one time
        await free(make())
        await asyncio.sleep(0.05)

    with pytest.warns(ResourceWarning, match="without being released"):
        await let_it_lapse()


# acquire() as a coroutine and as a block.


async def test_acquire_is_a_block_too(make: Make) -> None:
    lock = make()
    async with lock.acquire(timeout=LONG) as lease:
        assert lease.held
        assert (await lock.statistics()).holders == 1
    assert lease.remaining() == 0
    assert (await lock.statistics()).holders == 0


async def test_the_block_of_acquire_is_stopped_by_a_loss(make: Make) -> None:
    with pytest.raises(LeaseLostError):
        async with make(ttl=SHORT).acquire():
            await make.take_away()
            await asyncio.sleep(LONG)


async def test_acquire_is_a_coroutine(make: Make) -> None:
    lock = make()
    coroutine = lock.acquire()
    assert asyncio.iscoroutine(cast("object", coroutine))
    lease = await coroutine
    await lease.release()
    async with anyio.create_task_group() as group:
        group.start_soon(lock.acquire)
    await lock.release()


async def awaited_within(seconds: float, lock: Acquirable) -> Lease:
    return await asyncio.wait_for(lock.acquire(), seconds)


async def by_gathering(lock: Acquirable) -> Lease:
    (lease,) = await asyncio.gather(lock.acquire())
    return lease


async def of_a_group(lock: Acquirable) -> Lease:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(lock.acquire(timeout=LONG))
    return task.result()


async def as_it_completes(lock: Acquirable) -> Lease:
    (next_one,) = asyncio.as_completed([lock.acquire()])
    return await next_one


async def from_a_thread(lock: Acquirable) -> Lease:
    loop = asyncio.get_running_loop()
    return await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(lock.acquire(), loop).result(LONG))


async def by_hand(lock: Acquirable) -> Lease:
    """As other event loops' tasks and old-style coroutines do."""
    return await asyncio.ensure_future(sent_on(lock.acquire()))


async def sent_on(acquiring: Coroutine[Any, Any, Lease]) -> Lease:
    return await acquiring


@pytest.mark.parametrize(
    "lease_of",
    [
        lambda lock: asyncio.create_task(lock.acquire(), name="acquiring"),
        lambda lock: asyncio.ensure_future(lock.acquire()),
        lambda lock: asyncio.shield(lock.acquire()),
        lambda lock: asyncio.get_running_loop().create_task(lock.acquire()),
        lambda lock: awaited_within(LONG, lock),
        by_gathering,
        of_a_group,
        as_it_completes,
        from_a_thread,
        by_hand,
    ],
)
async def test_asyncio_takes_it_for_a_coroutine_wherever_it_wants_one(
    redis: Redis, lease_of: Callable[[Acquirable], Awaitable[Lease]]
) -> None:
    lock = Lock(redis, "orders")
    lease = await lease_of(lock)
    assert lease.held
    assert await lease.release()


async def test_inspection_takes_it_for_what_can_be_awaited(redis: Redis) -> None:
    acquiring = Lock(redis, "orders").acquire()
    assert inspect.isawaitable(acquiring)
    assert isinstance(acquiring, Coroutine)
    assert inspect.getcoroutinestate(cast("Any", acquiring)) == inspect.CORO_CREATED
    acquiring.close()
    assert inspect.getcoroutinestate(cast("Any", acquiring)) == inspect.CORO_CLOSED


async def test_a_task_that_acquires_shows_where_it_is(redis: Redis) -> None:
    lock = Lock(redis, "orders")
    async with lock:
        task = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0.01)
        assert "_acquire() running at" in repr(task)
        assert task.get_stack()
        task.cancel()


async def in_a_stack(lock: Acquirable) -> AsyncGenerator[Lease]:
    async with AsyncExitStack() as stack:
        lease = await stack.enter_async_context(lock.acquire(timeout=LONG))
        async with stack.pop_all():
            yield lease


async def in_a_scope(lock: Acquirable) -> AsyncGenerator[Lease]:
    with anyio.fail_after(LONG):
        async with asyncio.timeout(LONG), lock.acquire() as lease:
            yield lease


@pytest.mark.parametrize("shape", [in_a_stack, in_a_scope])
async def test_its_block_may_have_any_shape(redis: Redis, shape: Callable[[Acquirable], AsyncGenerator[Lease]]) -> None:
    lock = Lock(redis, "orders")
    async with contextlib.aclosing(shape(lock)) as body:
        lease = await anext(body)
        assert lease.held
        assert await lock.locked()
    assert not await lock.locked()


async def test_its_block_may_be_left_in_another_task(redis: Redis) -> None:
    lock = Lock(redis, "orders")
    stack = AsyncExitStack()
    lease = await stack.enter_async_context(lock.acquire())
    await asyncio.create_task(stack.aclose())
    assert not lease.held
    assert not await lock.locked()


async def test_an_acquire_that_is_not_awaited_says_that_it_is_not_the_lease(redis: Redis) -> None:
    acquiring: Any = Lock(redis, "orders").acquire()
    with pytest.raises(AttributeError, match="must be awaited") as caught:
        acquiring.fencing_token  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("fencing_token", acquiring)
    with pytest.raises(AttributeError, match=r"^'Acquiring' object has no attribute 'colour'$"):
        acquiring.colour  # noqa: B018
    acquiring.close()


async def test_a_call_that_is_not_awaited_says_so(make: Make) -> None:
    lock = make()
    for verb in ("acquire", "try_acquire", "locked"):
        with pytest.warns(RuntimeWarning, match=rf"{verb}' was never awaited"):
            getattr(lock, verb)()


async def test_a_bad_timeout_of_acquire_is_an_error_of_the_coroutine_and_of_the_block(redis: Redis) -> None:
    with pytest.raises(ValueError, match="timeout"):
        await Lock(redis, "orders").acquire(timeout=-1)
    with pytest.raises(ValueError, match="permits"):
        async with Semaphore(redis, "scraper", 3).acquire(permits=0):
            pytest.fail("entered")


# try_acquire() and locked(): coroutines that cannot be taken for their answers.


def negated(call: object) -> bool:
    return not call


def in_a_plain_block(call: Any) -> None:
    with call:
        pytest.fail("entered")


async def test_a_call_of_a_primitive_without_await_is_never_taken_for_its_answer(make: Make) -> None:
    lock = make()
    for verb in ("acquire", "try_acquire", "locked"):
        for use in (bool, negated, in_a_plain_block, iter):
            call = getattr(lock, verb)()
            with pytest.raises(TypeError, match=rf"{verb}\(\) must be awaited.*: use `.*await lock\.{verb}\(\)"):
                use(call)
            call.close()


async def test_an_answer_that_may_be_no_lease_is_no_block(make: Make) -> None:
    lock = make()
    for verb in ("try_acquire", "locked"):
        call = getattr(lock, verb)()
        with pytest.raises(TypeError, match=rf"`if .*await lock\.{verb}\(\):`"):
            async with call:
                pytest.fail("entered")
        with pytest.raises(TypeError, match="must be awaited"):
            await AsyncExitStack().enter_async_context(call)
        call.close()


async def test_try_acquire_and_locked_are_coroutines(make: Make) -> None:
    lock = make()
    for call in (lock.try_acquire(), lock.locked()):
        assert asyncio.iscoroutine(cast("object", call))
        assert inspect.isawaitable(call)
        assert inspect.getcoroutinestate(cast("Any", call)) == inspect.CORO_CREATED
        call.close()
    lease = await asyncio.wait_for(lock.try_acquire(), LONG)
    assert lease is not None
    async with asyncio.TaskGroup() as group:
        locked = group.create_task(lock.locked())
    assert isinstance(locked.result(), bool)
    assert await lease.release()
    (lease,) = await asyncio.gather(lock.try_acquire())
    assert lease is not None
    assert await lease.release()
    assert not await asyncio.create_task(lock.locked())


async def test_what_try_acquire_returns_says_that_it_is_not_the_lease(redis: Redis) -> None:
    call: Any = Lock(redis, "orders").try_acquire()
    with pytest.raises(AttributeError, match="must be awaited") as caught:
        call.fencing_token  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("fencing_token", call)
    call.close()


# hold() after an entry that failed.


async def cancelled(block: AbstractAsyncContextManager[Lease]) -> None:
    entering = asyncio.create_task(block.__aenter__())
    await asyncio.sleep(0.01)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering


async def destroyed(block: AbstractAsyncContextManager[Lease]) -> None:
    entering = block.__aenter__()
    entering.send(None)
    entering.close()


async def never_begun(block: AbstractAsyncContextManager[Lease]) -> None:
    block.__aenter__().close()


async def timed_out(block: AbstractAsyncContextManager[Lease]) -> None:
    with pytest.raises(AcquireTimeoutError):
        await block.__aenter__()


@pytest.mark.parametrize("fail", [cancelled, destroyed, never_begun, timed_out])
async def test_a_hold_whose_entry_failed_can_be_entered_again_in_any_shape(
    redis: Redis, fail: Callable[[AbstractAsyncContextManager[Lease]], Coroutine[Any, Any, None]]
) -> None:
    lock = Lock(redis, "orders", ttl=DROPPED)
    lease = await as_a_stranger(lock.acquire())
    block = lock.hold(timeout=SOON)
    await fail(block)
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


async def awaited_in_a_task(lock: Acquirable) -> None:
    await as_a_stranger(lock.acquire())


async def waited_for(lock: Acquirable) -> None:
    await asyncio.wait_for(lock.acquire(), LONG)


async def gathered(lock: Acquirable) -> None:
    await asyncio.gather(lock.acquire())


HABITS = [awaited_in_a_task, waited_for, gathered]


@pytest.mark.parametrize("take", HABITS)
async def test_release_finds_what_a_task_took_that_has_ended(
    make: Make, take: Callable[[Acquirable], Coroutine[Any, Any, None]]
) -> None:
    lock = make()
    await take(lock)
    await lock.release()
    assert await lock.locked() is False
    with pytest.raises(RuntimeError):
        await lock.release()


async def test_each_release_ends_one_lease_of_a_task_that_has_ended(redis: Redis) -> None:
    semaphore = Semaphore(redis, "scraper", 3)
    for _ in range(3):
        await awaited_in_a_task(semaphore)
    for left in (2, 1, 0):
        await semaphore.release()
        assert (await semaphore.statistics()).permits == left
    async with in_time(SLACK * 0.3, "it waits for one to turn up"):
        with pytest.raises(RuntimeError, match="no lease to release"):
            await semaphore.release()


async def test_release_says_once_that_such_a_lease_was_lost(make: Make) -> None:
    lock = make(ttl=DROPPED)
    await awaited_in_a_task(lock)
    with pytest.warns(ResourceWarning, match="without being released"):
        await asyncio.sleep(1.2 * DROPPED)
    with pytest.raises(LeaseLostError):
        await lock.release()
    with pytest.raises(RuntimeError):
        await lock.release()


async def test_a_lease_that_lapsed_is_remembered_for_another_ttl_only(redis: Redis) -> None:
    lock = Lock(redis, "orders", ttl=DROPPED)
    await awaited_in_a_task(lock)
    with pytest.warns(ResourceWarning, match="without being released"):
        await asyncio.sleep(2.2 * DROPPED)
    with pytest.raises(RuntimeError):
        await lock.release()


async def test_release_leaves_alone_what_is_referred_to(make: Make) -> None:
    lock = make()
    lease = await as_a_stranger(lock.acquire())
    with pytest.raises(RuntimeError):
        await lock.release()
    assert lease.held
    await lease.release()


async def test_release_leaves_a_block_alone(make: Make) -> None:
    lock = make()
    async with lock as lease:
        with pytest.raises(RuntimeError):
            await lock.release()
        assert lease.held


# A block whose lease is over.


@not_reentrant
async def test_a_task_may_enter_again_what_it_released_in_its_block(make: Make) -> None:
    async with make() as lease:
        await lease.release()
        async with make() as again:
            assert again.held
        once_more = await make().try_acquire()
        assert once_more is not None
        await once_more.release()


@not_reentrant
async def test_a_task_may_enter_again_what_it_lost_in_its_block(make: Make) -> None:
    async with make(ttl=SHORT, on_lost="flag") as lease:
        await make.take_away()
        assert await lease.wait_lost()
        async with make() as again:
            assert again.held
