"""How a lost lease stops the task in its block, in virtual time: what is cancelled when, and what is left alone."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import pairwise

import anyio
import pytest

from aiolocks import Lease, LeaseLostError
from aiolocks._engine.lease import state_of
from aiolocks.testing import ScriptedGrantor
from tests.support.jumping import the_loop, timers
from tests.support.virtual import clock
from tests.unit.engine.leases import END, run_by_hand, this_task

AGAIN = 0.02
"""Seconds between two looks at a task, or two cancellations of it, at most."""


def at(moment: float, callback: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_at(moment, callback)


async def test_a_body_that_goes_on_is_cancelled_soon_again_and_then_ever_more_seldom() -> None:
    """Cleanup that awaits ends soon, and a body that ignores all of it does not keep the loop busy."""
    cancelled: list[float] = []
    with pytest.raises(LeaseLostError):
        async with ScriptedGrantor().hold(renew=False):
            while len(cancelled) < 200:
                with contextlib.suppress(asyncio.CancelledError):
                    await anyio.sleep_forever()
                cancelled.append(clock())
    moments = sorted(set(cancelled))
    pauses = [later - sooner for sooner, later in pairwise(moments)]
    assert moments[0] == END
    assert cancelled.count(END) > 1, "`asyncio.wait_for` before Python 3.12 swallows one now and then"
    assert 0 < pauses[0] <= 0.001 + 1e-6
    assert pauses == pytest.approx(sorted(pauses))
    assert pauses[-1] == pytest.approx(AGAIN)
    assert len(cancelled) <= 5 * len(moments)


async def test_a_loss_that_the_body_itself_finds_stops_it_where_it_awaits_next() -> None:
    went_on = False
    with pytest.raises(LeaseLostError):
        async with ScriptedGrantor(renewals=[False]).hold() as lease:
            assert not await lease.renew()
            went_on = True
            await asyncio.sleep(5)
    assert (went_on, clock()) == (True, 0)


async def test_tasks_that_wait_for_one_another_in_a_circle_are_stopped_when_it_is_broken() -> None:
    circle: list[asyncio.Future[tuple[object]]] = []

    async def wait_for(task: "asyncio.Task[object]") -> None:
        circle.append(asyncio.gather(task))
        await circle[0]

    async def work() -> None:
        with pytest.raises(LeaseLostError):
            async with ScriptedGrantor().hold(renew=False), asyncio.timeout(100):
                await asyncio.gather(wait_for(this_task()))
                await anyio.sleep_forever()

    at(END + 5, lambda: circle[0].set_result((None,)))
    await asyncio.create_task(work())
    assert END + 5 <= clock() <= END + 5 + AGAIN


async def test_a_body_that_leaves_its_shield_for_one_turn_of_the_loop_is_stopped_then() -> None:
    """Though nothing in the shield waits for longer than a turn either."""
    turns = 0
    with pytest.raises(LeaseLostError):
        async with ScriptedGrantor().hold(renew=False):
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(40)
            for _ in range(100):
                turns += 1
                with anyio.CancelScope(shield=True):
                    for _ in range(5):
                        await asyncio.sleep(0)
                await asyncio.sleep(0)
    assert clock() == 40
    assert turns <= 2


async def test_a_body_that_waits_for_one_shielded_task_after_the_other_is_stopped_between_two() -> None:
    async def shielded() -> None:
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(0.7)

    with pytest.raises(LeaseLostError):
        async with ScriptedGrantor().hold(renew=False):
            for _ in range(100):
                await asyncio.create_task(shielded())
                await asyncio.sleep(0)
    assert END < clock() < END + 0.7


async def test_a_shield_that_another_task_lifts_protects_no_longer() -> None:
    with pytest.raises(LeaseLostError):
        async with ScriptedGrantor().hold(renew=False):
            with anyio.CancelScope(shield=True) as scope:
                at(40, lambda: setattr(scope, "shield", False))
                await asyncio.sleep(100)
    assert 40 <= clock() <= 40 + AGAIN


async def test_shielded_work_goes_on_though_what_was_gathered_beside_it_has_ended() -> None:
    done: list[float] = []

    async def shielded() -> None:
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(40)
            done.append(clock())

    with pytest.raises(LeaseLostError):
        async with ScriptedGrantor().hold(renew=False):
            await asyncio.gather(asyncio.sleep(1), shielded())
            await anyio.sleep_forever()
    assert done == [40]
    assert clock() <= 40 + AGAIN


async def test_what_comes_at_the_moment_of_the_loss_is_received_before_the_body_is_stopped() -> None:
    received: list[str] = []
    come = asyncio.get_running_loop().create_future()
    with pytest.raises(LeaseLostError):
        async with ScriptedGrantor().hold(renew=False) as lease:

            def at_once() -> None:
                come.set_result("a message")
                state_of(lease).lose("it is gone")

            at(5, at_once)
            received.append(await come)
            await anyio.sleep_forever()
    assert received == ["a message"]
    assert 5 <= clock() <= 5.002


@pytest.mark.parametrize("shield", [False, True])
async def test_after_the_block_nothing_looks_at_its_task_any_more(shield: bool) -> None:
    with pytest.raises(LeaseLostError):
        async with ScriptedGrantor().hold(renew=False):
            with anyio.CancelScope(shield=shield), contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(END + 1)
    assert this_task().cancelling() == 0
    await asyncio.sleep(1)
    assert timers() == 0


@pytest.mark.parametrize(
    ("errors", "with_the_cancellation"),
    [([], True), ([ValueError(), KeyError()], False), ([ValueError(), KeyError()], True)],
)
async def test_a_group_leaves_without_our_cancellation(errors: list[Exception], with_the_cancellation: bool) -> None:
    grantor, raised = ScriptedGrantor(renewals=[False]), list[BaseExceptionGroup[BaseException]]()
    with pytest.raises(ExceptionGroup if errors else LeaseLostError) as caught:
        async with grantor.hold():
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError as cancelled:
                raised.append(BaseExceptionGroup("all", [*[cancelled] * with_the_cancellation, *errors]))
                raise raised[0] from None
    if isinstance(caught.value, ExceptionGroup):
        assert caught.value.exceptions == tuple(errors)
        assert (caught.value is raised[0]) is not with_the_cancellation
        assert len(caught.value.__notes__) == 1
    await asyncio.sleep(0.1)
    assert not grantor.context.tokens


async def test_a_cancellation_of_the_body_s_own_leaves_a_lost_block_as_it_is() -> None:
    async def work() -> None:
        async with ScriptedGrantor().hold(renew=False):
            with contextlib.suppress(asyncio.CancelledError):
                await anyio.sleep_forever()  # until others ask
            try:
                await anyio.sleep_forever()  # until the loss
            except asyncio.CancelledError:
                raise asyncio.CancelledError("of its own") from None

    task = asyncio.create_task(work())
    at(1.0, task.cancel)
    with pytest.raises(asyncio.CancelledError, match="of its own"):
        await task
    assert clock() == END


@pytest.mark.parametrize("first", ["the loss", "the scope"])
async def test_a_scope_that_is_cancelled_at_the_moment_of_a_loss_ends_as_one(first: str) -> None:
    reached: list[str] = []
    with anyio.CancelScope() as scope:
        if first == "the scope":
            at(END, scope.cancel)
        async with ScriptedGrantor().hold(renew=False):
            if first == "the loss":
                at(END, scope.cancel)
            await anyio.sleep_forever()
        reached.append("after the block")
    assert scope.cancelled_caught
    assert not reached
    assert (clock(), this_task().cancelling()) == (END, 0)
    await asyncio.sleep(1)


async def test_a_coroutine_that_is_destroyed_after_its_loss_awaits_nothing() -> None:
    destroyed: list[Lease] = []

    async def hold() -> None:
        async with ScriptedGrantor(renewals=[False]).hold() as lease:
            assert not await lease.renew()
            destroyed.append(lease)
            await anyio.sleep_forever()

    async def work() -> None:
        coroutine = hold()
        with contextlib.suppress(asyncio.CancelledError):  # the one that the loss sends
            await run_by_hand(coroutine, lambda: False)
        coroutine.close()  # RuntimeError if it awaits anything
        destroyed[0].check()

    with pytest.raises(LeaseLostError):
        await asyncio.create_task(work())


async def entered(stack: AsyncExitStack, *, lost: bool = False, released: bool = False) -> Lease:
    """Enter a block in a task that ends at once, and may release the lease or lose it in its last turn."""

    async def enter() -> Lease:
        lease = await stack.enter_async_context(ScriptedGrantor(name="orders:42").hold())
        if lost:
            asyncio.get_running_loop().call_soon(state_of(lease).lose, "it is gone")
        if released:
            await lease.release()
        return lease

    return await asyncio.create_task(enter())


async def test_a_block_that_stays_open_a_second_after_its_task_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        await entered(stack)
        await asyncio.sleep(0.999)
        assert not caplog.records
        await asyncio.sleep(0.002)
        (warning,) = caplog.records
        await asyncio.sleep(5)
    assert (warning.levelno, "stub 'orders:42'" in warning.getMessage()) == (logging.WARNING, True)
    assert caplog.records == [warning]


@pytest.mark.parametrize("ends", ["left", "left after a stall", "its lease released", "its lease released by its task"])
async def test_a_block_ended_soon_after_its_task_is_not_warned_of(caplog: pytest.LogCaptureFixture, ends: str) -> None:
    async with AsyncExitStack() as stack:
        lease = await entered(stack, released=ends.endswith("by its task"))
        if ends == "left after a stall":
            at(clock() + 0.5, lambda: the_loop()._jump(5))
        await asyncio.sleep(0.9)
        if "released" in ends:
            await lease.release()
            await asyncio.sleep(5)
    await asyncio.sleep(5)
    assert not [record for record in caplog.records if record.name == "aiolocks"]


@pytest.mark.parametrize("in_the_same_turn", [False, True])
async def test_a_loss_after_its_task_is_an_error_line(caplog: pytest.LogCaptureFixture, in_the_same_turn: bool) -> None:
    stack = AsyncExitStack()
    lease = await entered(stack, lost=in_the_same_turn)
    if not in_the_same_turn:
        await asyncio.sleep(0.5)
        state_of(lease).lose("it is gone")
    await asyncio.sleep(5)
    assert all("stub 'orders:42'" in line.getMessage() for line in caplog.records)
    assert sorted(line.levelno for line in caplog.records) == [logging.WARNING, logging.ERROR]
    with pytest.raises(LeaseLostError):
        await stack.aclose()
