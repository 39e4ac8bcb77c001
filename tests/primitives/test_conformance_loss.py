"""Every primitive x every promise, on every server: a lost lease stops the body, and is in nobody else's way."""

import asyncio

import pytest

from aiolocks import LeaseLostError
from tests.support.inside import block_loop
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.of_asyncio import and_of_asyncio
from tests.support.primitives import BRIEF, SHORT, WITH_ONE_PLACE, Make
from tests.support.virtual import clock

LONG = 10
"""Seconds that a body would sleep if nobody stopped it."""


async def test_a_body_is_stopped_at_the_next_renewal_after_a_loss_and_learns_what_and_why(make: Make) -> None:
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError, match="orders") as caught:
            async with make(ttl=1.5) as lease:
                await make.take_away()
                begun = clock()
                await asyncio.sleep(LONG)
        took = clock() - begun
    assert_within(took, 1.1 * 1.5 / 3 + SLACK * 0.15 + lag.worst)
    error = caught.value
    assert (error.name, error.fencing_token) == (make.called("orders"), lease.fencing_token)
    assert error.reason
    assert error.reason in str(error)


async def test_a_body_that_finished_before_it_noticed_its_loss_ends_in_an_error(make: Make) -> None:
    with pytest.raises(LeaseLostError):
        async with make():
            await make.take_away()


async def test_a_body_that_blocked_the_loop_for_three_ttls_ends_in_an_error(make: Make) -> None:
    """F9: what renews in the loop cannot renew meanwhile."""
    with pytest.raises(LeaseLostError):
        async with make(ttl=BRIEF):
            block_loop(3 * BRIEF)
            await asyncio.sleep(LONG)


async def test_a_flagged_loss_marks_the_lease_and_lets_the_body_go_on(make: Make) -> None:
    async with make(ttl=SHORT, on_lost="flag") as lease:
        await make.take_away()
        await lease.wait_lost()
        await asyncio.sleep(0.05)
        assert (lease.held, lease.lost) == (False, True)


async def test_a_flagged_loss_that_only_the_release_finds_raises_nothing(make: Make) -> None:
    async with make(on_lost="flag"):
        await make.take_away()


@and_of_asyncio(WITH_ONE_PLACE)
@pytest.mark.parametrize(
    "error", [ValueError("mine"), TimeoutError(), StopAsyncIteration(), BaseExceptionGroup("both", [SystemExit()])]
)
async def test_the_bodys_own_exception_leaves_unchanged(make: Make, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        async with make():
            raise error
    assert caught.value is error
    assert (error.__cause__, error.__context__, getattr(error, "__notes__", [])) == (None, None, [])
