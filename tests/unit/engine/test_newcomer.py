"""W26: which requests come with the bound of `max_waiting`: those of newcomers."""

import asyncio

from aiolocks._engine.lease import Lease
from aiolocks._engine.request import Request
from aiolocks._grantors.max_waiting import MaxWaiting
from aiolocks.testing import After, ScriptedGrantor

BOUND = MaxWaiting(20)


async def test_a_request_whose_grant_was_withdrawn_is_no_newcomer() -> None:
    """Nor is a waiter. A part that was asked for without waiting becomes a newcomer when it begins to wait."""
    for wait, carried in ((True, ()), (False, (BOUND,))):
        request = Request(30, 1, wait, extensions=(BOUND,))
        assert request.again().extensions == (BOUND,), "it was never answered"
        request.was_reached()
        assert request.again().extensions == carried


async def test_a_request_whose_grant_came_late_is_no_newcomer() -> None:
    """The lease may have lapsed, and others may wait by now."""
    grantor = ScriptedGrantor(grants=[After(20, 1), "queued"])
    acquisition = grantor.asking(ttl=30)
    acquisition.request.carry((BOUND,))
    acquiring = asyncio.create_task(acquisition.acquire(Lease, by_hand=True))
    await asyncio.sleep(21)
    assert [request.extensions for request in grantor.requests] == [(), ()]
    grantor.hand_over(7)
    assert await (await acquiring).release()
