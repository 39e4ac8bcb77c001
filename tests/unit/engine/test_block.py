"""How a block is left, in virtual time: what is awaited, what leaves it, and whom that concerns."""

import asyncio
import contextlib
import traceback
from contextlib import AsyncExitStack

import anyio
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import LeaseLostError
from aiolocks.testing import After, ScriptedGrantor
from tests.support.inside import block_loop
from tests.support.virtual import clock
from tests.unit.engine.leases import END


@pytest.mark.parametrize("entering_task", ["goes on", "has ended"])
async def test_only_a_task_that_leaves_learns_of_a_loss(entering_task: str, caplog: pytest.LogCaptureFixture) -> None:
    stack = AsyncExitStack()

    async def enter_and_go_on() -> None:
        await stack.enter_async_context(ScriptedGrantor().hold())
        if entering_task == "goes on":
            await asyncio.sleep(100)

    task = asyncio.create_task(enter_and_go_on())
    await asyncio.sleep(0.5)
    block_loop(40)
    with pytest.raises(LeaseLostError):
        await stack.aclose()
    await task
    (line,) = [record for record in caplog.records if record.name == "aiolocks"]
    assert (line.levelname, "not renewed within its" in line.getMessage()) == ("WARNING", True)


async def test_what_the_body_raised_leaves_without_our_frames_and_with_a_note_of_a_loss() -> None:
    grantors = (ScriptedGrantor(), ScriptedGrantor(renewals=[False]), ScriptedGrantor(withdrawals=[False]))
    for notes, grantor in zip((0, 1, 1), grantors, strict=True):
        with pytest.raises(KeyError) as caught:
            async with grantor.hold():
                try:
                    await asyncio.sleep(11)
                finally:
                    raise KeyError
        assert {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)} == {__file__}
        assert len(getattr(caught.value, "__notes__", [])) == notes


async def test_what_a_body_raises_in_a_cancelled_scope_leaves_though_the_release_takes_a_while() -> None:
    """It has seen the scope's cancellation, and answered it so."""
    with pytest.raises(KeyError), anyio.CancelScope() as scope:
        async with ScriptedGrantor(withdrawals=[After(0.4, True)]).hold():
            scope.cancel()
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                raise KeyError from None
    assert clock() == 0.4


@pytest.mark.parametrize(("ttl", "renewed", "left"), [(0.5, 0.5, 0), (30.0, 0.5, 29), (30.0, 90.0, 89)])
async def test_a_release_that_never_succeeded_is_warned_of_with_the_time_that_the_lease_lasts(
    caplog: pytest.LogCaptureFixture, ttl: float, renewed: float, left: float
) -> None:
    async with ScriptedGrantor(withdrawals=[RedisConnectionError()]).hold(ttl=ttl) as lease:
        await lease.renew(renewed)
    (warning,) = caplog.messages
    assert "stub 'scripted': the release could not be confirmed" in warning
    assert warning.endswith(f"; if it failed, the lease ends in about {left:g} s")


async def test_a_block_in_a_forked_child_ends_in_the_error_that_says_so() -> None:
    grantor = ScriptedGrantor()
    with pytest.raises(LeaseLostError, match="forked"):
        async with grantor.hold():
            grantor.context.after_fork()  # as in the child, in which no loop runs
    assert not grantor.times("withdraw")
    grantor.session.close()


@pytest.mark.parametrize("valid", [True, False])
async def test_a_lease_by_hand_that_a_block_has_ended_is_the_task_s_no_more(valid: bool) -> None:
    grantor = ScriptedGrantor()
    with contextlib.nullcontext() if valid else pytest.raises(LeaseLostError):
        async with await grantor.acquire(renew=False):
            if not valid:
                await asyncio.sleep(END)
    assert grantor.context.holdings.newest(asyncio.current_task(), b"stub:scripted") is None
    await asyncio.sleep(1)
    assert grantor.context.closed
