"""Every primitive x every promise, on every server: cancellation passes through a block as if there were none."""

import asyncio

import anyio
import pytest

from aiolocks import LeaseLostError
from tests.support.inside import block_loop
from tests.support.of_asyncio import and_of_asyncio
from tests.support.primitives import BRIEF, SHORT, WITH_ONE_PLACE, Make, cancelled, reached

LONG = 10
"""Seconds that a body would sleep if nobody stopped it."""


def pending_cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_a_loss_within_a_group_and_timeouts_that_do_not_fire_leaves_no_cancellation_behind(make: Make) -> None:
    with pytest.raises(LeaseLostError):
        async with asyncio.timeout(LONG):
            with anyio.fail_after(LONG):
                async with make(ttl=SHORT):
                    async with asyncio.timeout(LONG), asyncio.TaskGroup() as group:
                        child = group.create_task(asyncio.sleep(LONG))
                        await make.take_away()
    assert child.cancelled()
    assert pending_cancellations() == 0
    await asyncio.sleep(0.01)


@and_of_asyncio(WITH_ONE_PLACE)
async def test_a_cancellation_stays_one(make: Make) -> None:
    """F3: cancelled while it waits, works or lets go, a block ends in that cancellation."""

    async def work() -> None:
        async with make():
            inside.set_result(None)
            await asyncio.sleep(LONG)

    inside: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(work())
    await reached(inside, task)
    await cancelled(task)
    assert await make().locked() is False


async def test_a_cancellation_that_is_taken_back_leaves_nothing_behind(make: Make) -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with make(ttl=BRIEF):
                block_loop(2 * BRIEF)
                task.cancel()
                await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            assert task.cancelling() == 1
            task.uncancel()
        await asyncio.sleep(0.01)

    await asyncio.create_task(work())


@and_of_asyncio(WITH_ONE_PLACE)
async def test_timeouts_around_a_block_work(make: Make) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            async with make():
                await asyncio.sleep(LONG)
    with pytest.raises(TimeoutError), anyio.fail_after(0.1):
        async with make():
            await asyncio.sleep(LONG)
    assert pending_cancellations() == 0
    assert await make().locked() is False
