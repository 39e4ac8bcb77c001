"""Which block is left, in virtual time: by `async with`, by generators, by classes that call both methods."""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any

import anyio
import pytest

from aiolocks import Lease
from aiolocks._engine.block import Block as OpenBlock
from aiolocks._engine.block import SharedContextManager, as_coroutine
from aiolocks.testing import After, JumpingLoop, ScriptedGrantor
from tests.support.inside import block_loop
from tests.support.virtual import clock
from tests.unit.engine.leases import END, and_collect, later, run_by_hand, this_task, until_lost


class Scripted(SharedContextManager[Lease]):
    """A primitive by a stub, which grants whatever it is asked for: any number of tasks may be inside."""

    def __init__(self, grantor: ScriptedGrantor | None = None) -> None:
        self.grantor = grantor or ScriptedGrantor()

    def _enter(self, block: OpenBlock) -> Coroutine[Any, Any, Lease]:
        return self.grantor.asking().acquire(Lease, block=block)


class Other(Scripted):
    """Of another class, whose methods are looked up elsewhere."""


class Delegating:
    """What many write around a lock: a class that calls both methods by itself."""

    def __init__(self, inner: AbstractAsyncContextManager[Lease]) -> None:
        self._inner = inner

    async def __aenter__(self) -> Lease:
        return await self._inner.__aenter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(exc_type, exc, traceback)


def twice(primitive: Scripted) -> Delegating:
    """Return two such classes around each other: no frame tells whose block it is."""
    return Delegating(Delegating(primitive))


@pytest.mark.parametrize(
    ("looked_up_on", "other"), [("the object", Scripted), ("the object", Other), ("the class", Other)]
)
async def test_what_was_looked_up_on_one_object_leaves_no_block_of_another(looked_up_on: str, other: Any) -> None:
    first, entered = Scripted(), other()
    leave: Any = first.__aexit__ if looked_up_on == "the object" else partial(type(first).__aexit__, first)
    lease = await entered.__aenter__()
    with pytest.raises(RuntimeError, match="not held by a block that could be left here"):
        await leave(None, None, None)
    lease.check()
    await entered.__aexit__(None, None, None)
    assert not lease.held


async def test_what_was_looked_up_on_the_class_leaves_the_block_of_the_object_that_was_entered_next() -> None:
    primitive = Scripted()
    leave: Any = type(primitive).__aexit__
    lease = await primitive.__aenter__()
    await leave(primitive, None, None, None)
    assert not lease.held
    with pytest.raises(RuntimeError, match=r"Scripted.*: this block was left already"):
        await leave(primitive, None, None, None)


@pytest.mark.parametrize("together", [False, True])
async def test_what_was_looked_up_once_is_for_the_first_block_that_is_entered_then(together: bool) -> None:
    primitive = Scripted()
    leave = primitive.__aexit__
    if together:
        entries = [primitive.__aenter__(), primitive.__aenter__()]
        first, second = [await entry for entry in entries]
    else:
        first, second = await primitive.__aenter__(), await primitive.__aenter__()
    ends = [leave(None, None, None), leave(None, None, None)]
    await ends[0]
    with pytest.raises(RuntimeError, match="left already"):
        await ends[1]
    assert (first.held, second.held) == (False, True)
    await primitive.__aexit__(None, None, None)
    assert not second.held


@pytest.mark.parametrize("around", [
    pytest.param(lambda primitive: primitive, id="async with"),
    pytest.param(lambda primitive: primitive.grantor.hold(), id="hold"), pytest.param(Delegating, id="a class"),
])  # fmt: skip
async def test_a_block_keeps_no_task_that_has_ended(around: Any) -> None:
    stack = contextlib.AsyncExitStack()

    async def enter() -> "weakref.ref[asyncio.Task[object]]":
        await stack.enter_async_context(around(Scripted()))
        return weakref.ref(this_task())

    task = await and_collect(asyncio.create_task(enter()))
    assert task() is None
    await stack.aclose()


async def test_a_block_that_the_object_keeps_goes_with_the_object() -> None:
    """At once, and not with the next collection: its lease keeps others out until then."""
    primitive = Scripted()

    async def enter(primitive: Scripted) -> "weakref.ref[Lease]":
        return weakref.ref(await type(primitive).__aenter__(primitive))

    lease = await and_collect(asyncio.create_task(enter(primitive)))
    assert lease() is not None
    del primitive
    assert lease() is None


async def test_each_task_leaves_its_own_block_where_no_frame_tells() -> None:
    primitive = Scripted()
    leases: list[Lease] = []

    async def work(seconds: float) -> None:
        async with twice(primitive) as lease:
            leases.append(lease)
            await asyncio.sleep(seconds)
            assert lease.held
        assert not lease.held

    await asyncio.gather(work(1), work(3), work(2))
    assert len(leases) == 3
    assert not primitive._kept


async def test_of_two_blocks_of_a_task_that_no_handle_has_neither_is_left_and_the_error_names_hold() -> None:
    primitive = Scripted()
    first, second = Delegating(primitive), Delegating(primitive)
    leases = [await first.__aenter__(), await second.__aenter__()]
    with pytest.raises(RuntimeError, match=r"hold\(\)"):
        await second.__aexit__(None, None, None)
    assert [lease.held for lease in leases] == [True, True]
    for lease in leases:
        await lease.release()


async def test_the_only_block_that_is_open_may_be_left_by_anyone() -> None:
    primitive = Scripted()
    for _ in range(2):
        lease = await asyncio.create_task(as_coroutine(twice(primitive).__aenter__()))
        await primitive.__aexit__(None, None, None)
        assert not lease.held
    with pytest.raises(RuntimeError, match="not held by a block"):
        await primitive.__aexit__(None, None, None)


async def test_a_block_that_was_left_open_in_another_loop_is_not_left_here() -> None:
    primitive = Scripted()

    async def enter_and_end() -> Lease:
        primitive.grantor = ScriptedGrantor()
        return await twice(primitive).__aenter__()

    await asyncio.to_thread(in_a_loop_of_its_own, enter_and_end())
    with pytest.raises(RuntimeError, match="not held by a block that could be left here"):
        await primitive.__aexit__(None, None, None)
    primitive.grantor = ScriptedGrantor()
    lease = await twice(primitive).__aenter__()
    await primitive.__aexit__(None, None, None)
    assert not lease.held


def in_a_loop_of_its_own(main: Coroutine[Any, Any, object]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(main)


async def held(block: AbstractAsyncContextManager[Lease]) -> AsyncGenerator[Lease]:
    async with block as lease:
        yield lease


async def on_a_stack(block: AbstractAsyncContextManager[Lease]) -> AsyncGenerator[Lease]:
    async with contextlib.AsyncExitStack() as stack:
        yield await stack.enter_async_context(block)


Shape = Callable[[AbstractAsyncContextManager[Lease]], AsyncGenerator[Lease]]


@contextlib.asynccontextmanager
async def of_a_lease(grantor: ScriptedGrantor) -> AsyncGenerator[Lease]:
    async with await grantor.acquire() as lease:
        yield lease


Block = Callable[[ScriptedGrantor], AbstractAsyncContextManager[Lease]]

BLOCKS: list[Block] = [ScriptedGrantor.hold, of_a_lease, Scripted, lambda grantor: Delegating(Scripted(grantor))]


@pytest.mark.parametrize("block", BLOCKS, ids=["hold", "a lease", "async with", "a class"])
async def test_a_block_reports_a_loss_in_the_cleanup_of_a_cancelled_task(block: Block) -> None:
    """The request to cancel that the task had when it entered is no answer to what happens in the block."""
    cleaned: list[int] = []

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await until_lost(block(ScriptedGrantor(renewals=[False])))
            await asyncio.sleep(1)
            cleaned.append(this_task().cancelling())

    task = asyncio.create_task(work())
    later(1, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [1]


@pytest.mark.parametrize(
    ("shape", "block"), [*((held, block) for block in BLOCKS), *((on_a_stack, block) for block in BLOCKS[:-1])]
)
async def test_a_generator_that_is_closed_waits_for_the_release_of_its_block(block: Block, shape: Shape) -> None:
    generator = shape(block(ScriptedGrantor(withdrawals=[After(0.3, True)])))
    lease = await anext(generator)
    await generator.aclose()
    assert not lease.held
    assert clock() == 0.3


@pytest.mark.parametrize("shape", [held, on_a_stack])
async def test_a_generator_that_was_lost_is_closed_without_a_word(shape: Shape) -> None:
    """What closes it asks for no more than its end."""
    generator = shape(ScriptedGrantor().hold(renew=False, on_lost="flag"))
    lease = await anext(generator)
    await asyncio.sleep(END + 1)
    await generator.aclose()
    assert lease.lost


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
async def test_a_coroutine_that_is_destroyed_in_its_block_releases_without_awaiting(stacked: bool, lost: bool) -> None:
    grantor = ScriptedGrantor(withdrawals=[After(0.3, True)])
    coroutine, lease = await suspended(await grantor.acquire() if stacked else Scripted(grantor), stacked=stacked)
    if lost:
        block_loop(END)
    coroutine.close()  # RuntimeError if it awaits anything
    assert not lease.held
    await asyncio.sleep(1)
    assert grantor.tokens("withdraw") == [lease.token.encode()]


@pytest.mark.parametrize("kind", ["object", "hold", "lease"])
def test_a_coroutine_that_is_destroyed_after_its_loop_sends_nothing_says_nothing_and_is_kept_nowhere(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    left: list[tuple[Coroutine[Any, Any, None], Scripted]] = []

    async def leave_it_suspended() -> None:
        primitive = Scripted()
        stub = primitive.grantor
        block = primitive if kind == "object" else stub.hold() if kind == "hold" else await stub.acquire()
        coroutine, _ = await suspended(block)
        left.append((coroutine, primitive))

    loop = JumpingLoop()
    loop.run_until_complete(leave_it_suspended())
    loop.close()
    loop._jump(END)
    ((coroutine, primitive),) = left
    coroutine.close()
    assert not caplog.messages
    assert not primitive.grantor.times("withdraw")
    assert not primitive._kept


async def suspended(
    block: AbstractAsyncContextManager[Lease], *, stacked: bool = False
) -> tuple[Coroutine[Any, Any, None], Lease]:
    """Return a coroutine that is inside a block, or in one on a stack, and the lease of that."""
    leases: list[Lease] = []

    async def work() -> None:
        if stacked:
            async with contextlib.AsyncExitStack() as stack:
                leases.append(await stack.enter_async_context(block))
                await asyncio.sleep(0)
            return
        async with block as lease:
            leases.append(lease)
            await asyncio.sleep(0)

    coroutine = work()
    await run_by_hand(coroutine, lambda: bool(leases))
    return coroutine, leases[0]


async def test_a_look_at_the_method_where_no_loop_runs_is_none_of_a_block() -> None:
    primitive = Scripted()
    assert await asyncio.to_thread(lambda: hasattr(primitive, "__aexit__"))
    async with primitive as lease:
        assert hasattr(type(primitive), "__aexit__")
    assert not lease.held
    with contextlib.suppress(RuntimeError):
        await primitive.__aexit__(None, None, None)
