"""Who holds what in this process: which names a task is inside of, and its leases."""

import asyncio
import gc
import weakref
from typing import TypeVar

import pytest

from aiolocks import Lease
from aiolocks._lease import state_of
from aiolocks._ledger import Ledger
from aiolocks._stop import BodyTask
from aiolocks.testing import ScriptedGrantor

pytestmark = pytest.mark.asyncio

T = TypeVar("T")

BASE = b"stub:scripted"


def this_task() -> "asyncio.Task[object]":
    task = asyncio.current_task()
    assert task is not None
    return task


# What a task is inside of.


def inside(ledger: Ledger, permits: int, base: bytes = BASE) -> BodyTask:
    """Note that the running task has entered a block."""
    loop = asyncio.get_running_loop()
    return BodyTask(this_task(), 0, loop, ledger, ScriptedGrantor(), base, permits)


async def test_permits_of_a_task_s_open_blocks_add_up() -> None:
    ledger, task = Ledger(), this_task()
    assert ledger.inside(task, BASE) == 0
    three, two = inside(ledger, 3), inside(ledger, 2)
    assert ledger.inside(task, BASE) == 5
    three.leave()
    assert ledger.inside(task, BASE) == 2
    two.leave()
    assert ledger.inside(task, BASE) == 0
    assert not ledger.in_use()


async def test_a_task_is_inside_no_more_when_the_lease_is_over_but_its_block_counts_as_open() -> None:
    ledger = Ledger()
    body = inside(ledger, 1)
    body.no_longer_inside()
    assert ledger.inside(this_task(), BASE) == 0
    assert ledger.in_use()
    body.leave()
    assert not ledger.in_use()


async def test_permits_of_one_task_or_name_are_not_another_s() -> None:
    ledger = Ledger()
    other = asyncio.create_task(asyncio.sleep(0))
    body = inside(ledger, 1)
    assert ledger.inside(other, BASE) == 0
    assert ledger.inside(this_task(), b"stub:another") == 0
    assert ledger.inside(None, BASE) == 0
    await other
    body.leave()


# Leases by task.


async def test_the_newest_lease_of_a_task_comes_first() -> None:
    grantor = ScriptedGrantor()
    ledger, task = grantor.session.ledger, this_task()
    first, second = await grantor.acquire(), await grantor.acquire()
    assert ledger.newest(task, BASE) is state_of(second)
    await second.release()
    assert ledger.newest(task, BASE) is state_of(first)
    await first.release()
    assert ledger.newest(task, BASE) is None


async def test_leases_may_be_released_in_any_order() -> None:
    grantor = ScriptedGrantor()
    first, second = await grantor.acquire(), await grantor.acquire()
    await first.release()
    assert grantor.session.ledger.newest(this_task(), BASE) is state_of(second)
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


async def test_a_block_s_lease_cannot_be_released_by_name() -> None:
    grantor = ScriptedGrantor()
    async with grantor.hold():
        assert grantor.session.ledger.newest(this_task(), BASE) is None
    assert grantor.session.ledger.newest(this_task(), BASE) is None


async def test_the_ledger_keeps_no_lease_of_a_task_that_ended() -> None:
    grantor = ScriptedGrantor()

    async def take() -> "weakref.ref[Lease]":
        return weakref.ref(await grantor.acquire())

    lease = await and_collect(asyncio.create_task(take()))
    assert lease() is None
    state = grantor.session.ledger.newest_unreferenced(BASE)
    assert state is not None
    assert await Lease(state).release()
    assert grantor.session.ledger.newest_unreferenced(BASE) is None


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
