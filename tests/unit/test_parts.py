"""Parts of one lease, undone one by one."""

import asyncio

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks._parts import end, undo_parts
from aiolocks._request import Part, Request
from aiolocks.testing import After, ScriptedGrantor
from tests.support.jumping import clock, jumping


@jumping
async def test_what_is_undone_twice_is_undone_once_and_both_hear_of_it() -> None:
    stub = ScriptedGrantor(withdrawals=[After(0.2, True)])
    part, told = Part(stub, Request(1.0, 1, wait=False)), list[bool | Exception]()
    assert end(part, told.append) is end(part, told.append)
    await asyncio.sleep(0.3)
    assert told == [True, True]
    assert len(stub.times("withdraw")) == 1


@jumping
async def test_an_undo_that_was_begun_twice_does_not_outlive_its_session() -> None:
    """The one of which the session did not know any more opened a new connection, which nobody closed."""
    stub = ScriptedGrantor(withdrawals=[RedisConnectionError()])
    part = Part(stub, Request(30.0, 1, wait=False))
    end(part)
    end(part)
    stub.session.touch()
    while not stub.session.closed:
        await asyncio.sleep(0.1)
    closed_at = clock()
    await asyncio.sleep(60)
    assert max(stub.times("withdraw")) <= closed_at


@jumping
async def test_a_quorum_s_undo_waits_for_who_has_granted_and_not_for_who_does_not_answer() -> None:
    """Of five servers one does not answer, and one that has granted is slow to undo it."""
    parts = [
        Part(ScriptedGrantor(withdrawals=[After(delay, True)]), Request(30.0, 1, wait=False))
        for delay in (0.1, 0.2, 0.3, 0.5, 5.0)
    ]
    told: list[float] = []
    parts[3].request.counted_from = clock()
    undo_parts(parts, lambda _: told.append(clock()), 3)
    await asyncio.sleep(10)
    assert told == [pytest.approx(0.5, abs=0.01)]
    told.clear()
    undo_parts([part for part in parts if part.ended], lambda _: told.append(clock()), 3)
    assert len(told) == 1
