"""Who holds what in this process: open blocks by their frames, leases by their tasks."""

import asyncio
import gc
import sys
import weakref
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from types import FrameType
from typing import Any, TypeVar, final

import pytest

from aiolocks import Lease
from aiolocks._ledger import Block, Blocks, Ledger, place
from aiolocks.testing import ScriptedGrantor

pytestmark = pytest.mark.asyncio

T = TypeVar("T")

BASE = b"stub:scripted"


@final
class Open:
    """A block of the running task."""

    def __init__(self) -> None:
        self.task = asyncio.current_task()
        self.outer: Block | None = None
        self.abandoned = False

    async def leave(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("a mere name here")

    def abandon(self) -> None:
        self.abandoned = True


def frame() -> FrameType:
    """Return a frame that is no other's."""
    return sys._getframe()


def this_task() -> "asyncio.Task[object]":
    task = asyncio.current_task()
    assert task is not None
    return task


async def close_in_task(blocks: Blocks, owner: object, where: FrameType) -> Block | None:
    return blocks.close(owner, where)


async def open_in_task(blocks: Blocks, owner: object, where: FrameType, block: Open) -> None:
    block.task = asyncio.current_task()
    blocks.open(place(owner, where), block)


# Blocks.


async def test_a_block_is_known_by_its_frame_whatever_the_order() -> None:
    blocks, owner = Blocks(), object()
    opened = [(frame(), Open()) for _ in range(3)]
    for where, block in opened:
        blocks.open(place(owner, where), block)
    for where, block in (opened[1], opened[0], opened[2]):
        assert blocks.close(owner, where) is block


async def test_the_frame_tells_even_in_another_task() -> None:
    """A generator may be finalized by another task than the one that entered its block."""
    blocks, owner = Blocks(), object()
    mine, theirs = Open(), Open()
    my_frame, their_frame = frame(), frame()
    blocks.open(place(owner, my_frame), mine)
    await asyncio.create_task(open_in_task(blocks, owner, their_frame, theirs))
    assert blocks.close(owner, their_frame) is theirs
    assert await asyncio.create_task(close_in_task(blocks, owner, my_frame)) is mine


async def test_the_task_tells_where_the_frame_does_not() -> None:
    """Code without Python frames enters and leaves in whatever frame called it."""
    blocks, owner = Blocks(), object()
    mine, theirs = Open(), Open()
    blocks.open(place(owner, frame()), mine)
    await asyncio.create_task(open_in_task(blocks, owner, frame(), theirs))
    assert blocks.close(owner, frame()) is mine
    assert blocks.close(owner, frame()) is theirs


async def test_a_block_is_never_taken_for_one_of_another_thread() -> None:
    """One lock may be shared by loops in several threads, and a stack whose blocks moved has no frame of theirs."""
    blocks, owner, mine, theirs = Blocks(), object(), Open(), Open()
    blocks.open(place(owner, frame()), mine)
    their_frame = frame()
    await asyncio.to_thread(asyncio.run, open_in_task(blocks, owner, their_frame, theirs))
    assert await asyncio.create_task(close_in_task(blocks, owner, frame())) is mine
    assert blocks.close(owner, frame()) is None
    assert blocks.close(owner, their_frame) is theirs


class Owner:
    """What primitives do with the blocks in their `async with`; the frame is that of whoever calls these methods."""

    def __init__(self) -> None:
        self.blocks = Blocks()
        self.left: list[Block | None] = []

    def __aenter__(self) -> Coroutine[Any, Any, Open]:
        return self._enter(sys._getframe(1))

    def __aexit__(self, *_: object) -> Coroutine[Any, Any, None]:
        return self._leave(sys._getframe(1))

    async def _enter(self, where: FrameType) -> Open:
        block = Open()
        self.blocks.open(place(self, where), block)
        return block

    async def _leave(self, where: FrameType) -> None:
        self.left.append(self.blocks.close(self, where))


async def test_an_exit_stack_leaves_the_blocks_that_it_entered() -> None:
    """It enters and leaves in frames of its own, and several may be open in one task."""
    owner, older, newer = Owner(), AsyncExitStack(), AsyncExitStack()
    async with newer, older:
        first = await older.enter_async_context(owner)
        second = await newer.enter_async_context(owner)
        third = await older.enter_async_context(owner)
        async with owner as plain:
            pass
    assert owner.left == [plain, third, first, second]


async def test_of_blocks_that_nothing_tells_apart_the_newest_is_left_first() -> None:
    blocks, owner = Blocks(), object()
    where, older, newer = frame(), Open(), Open()
    blocks.open(place(owner, where), older)
    blocks.open(place(owner, where), newer)
    assert blocks.close(owner, where) is newer
    assert blocks.close(owner, where) is older


async def test_blocks_of_two_owners_are_never_mixed_up() -> None:
    blocks, one, other, where = Blocks(), object(), object(), frame()
    blocks.open(place(one, where), Open())
    assert blocks.close(other, where) is None


async def test_closed_blocks_are_forgotten() -> None:
    blocks, owner, where = Blocks(), object(), frame()
    blocks.open(place(owner, where), Open())
    blocks.close(owner, where)
    assert blocks.close(owner, where) is None


async def test_blocks_of_a_closed_loop_keep_no_task_alive_and_are_taken_for_no_other() -> None:
    blocks, owner, mine = Blocks(), object(), Open()
    where, their_frame, theirs = frame(), frame(), [Open(), Open()]
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(0))
    for block in theirs:
        block.task = task
        blocks.open(place(owner, their_frame), block)
    blocks.open(place(owner, where), mine)
    await asyncio.to_thread(loop.run_until_complete, task)
    loop.close()
    blocks.abandon(loop)
    assert [block.abandoned for block in (mine, *theirs)] == [False, True, True]
    for _ in theirs:
        left = blocks.close(owner, their_frame)
        assert left is not None
        assert left not in (mine, *theirs)
    assert blocks.close(owner, where) is mine


# What a task is inside of.


async def test_permits_of_a_task_s_open_blocks_add_up() -> None:
    ledger, task = Ledger(), this_task()
    assert ledger.inside(task, BASE) == 0
    ledger.enter(task, BASE, 3)
    ledger.enter(task, BASE, 2)
    assert ledger.inside(task, BASE) == 5
    ledger.leave(task, BASE, 3)
    assert ledger.inside(task, BASE) == 2
    ledger.leave(task, BASE, 2)
    assert ledger.inside(task, BASE) == 0
    assert not ledger.in_use()


async def test_permits_of_one_task_or_name_are_not_another_s() -> None:
    ledger, task = Ledger(), this_task()
    other = asyncio.create_task(asyncio.sleep(0))
    ledger.enter(task, BASE, 1)
    assert ledger.inside(other, BASE) == 0
    assert ledger.inside(task, b"stub:another") == 0
    assert ledger.inside(None, BASE) == 0
    await other


# Leases by task.


async def test_the_newest_lease_of_a_task_comes_first() -> None:
    grantor = ScriptedGrantor()
    ledger, task = grantor.session.ledger, this_task()
    first, second = await grantor.acquire(), await grantor.acquire()
    assert ledger.newest(task, BASE) is second
    await second.release()
    assert ledger.newest(task, BASE) is first
    await first.release()
    assert ledger.newest(task, BASE) is None


async def test_leases_may_be_released_in_any_order() -> None:
    grantor = ScriptedGrantor()
    first, second = await grantor.acquire(), await grantor.acquire()
    await first.release()
    assert grantor.session.ledger.newest(this_task(), BASE) is second
    await second.release()


async def test_a_lease_belongs_to_the_task_that_took_it() -> None:
    grantor = ScriptedGrantor()
    ledger = grantor.session.ledger
    task = asyncio.create_task(grantor.acquire())
    lease = await task
    assert ledger.newest(this_task(), BASE) is None
    assert ledger.newest(None, BASE) is None
    assert ledger.newest(task, b"stub:another") is None
    await lease.release()


async def test_a_lease_left_by_its_block_cannot_be_released_by_name_again() -> None:
    grantor = ScriptedGrantor()
    async with grantor.hold() as lease:
        assert grantor.session.ledger.newest(this_task(), BASE) is lease
    assert grantor.session.ledger.newest(this_task(), BASE) is None


async def test_the_ledger_keeps_no_lease_of_a_task_that_ended() -> None:
    grantor = ScriptedGrantor()

    async def take() -> "weakref.ref[Lease]":
        return weakref.ref(await grantor.acquire())

    with pytest.warns(ResourceWarning, match="'scripted'"):
        lease = await and_collect(asyncio.create_task(take()))
    assert lease() is None


async def test_the_ledger_keeps_no_task_without_a_lease() -> None:
    grantor = ScriptedGrantor()

    async def take_and_release() -> "weakref.ref[asyncio.Task[object]]":
        await (await grantor.acquire()).release()
        async with grantor.hold():
            pass
        return weakref.ref(this_task())

    task = await and_collect(asyncio.create_task(take_and_release()))
    assert task() is None


async def test_a_task_that_goes_on_keeps_nothing_of_the_leases_it_released() -> None:
    grantor = ScriptedGrantor()
    before = len(gc.get_objects())
    for _ in range(2_000):
        await (await grantor.acquire()).release()
    grantor.asked.clear()
    grantor.requests.clear()
    grantor._fences.clear()
    gc.collect()
    assert len(gc.get_objects()) - before < 1_000


async def and_collect(task: "asyncio.Task[T]") -> T:
    """Return what *task* returns, when all that it alone kept is gone."""
    result = await task
    del task
    for _ in range(3):
        await asyncio.sleep(0)  # the loop itself keeps what it called last
    gc.collect()
    return result
