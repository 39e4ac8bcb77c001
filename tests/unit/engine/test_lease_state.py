"""What is known of one lease, in virtual time: until when it counts, how it ends, and what is said of why."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import Lease, LeaseLostError
from aiolocks._engine.lease import state_of
from aiolocks.testing import ScriptedGrantor
from tests.support.jumping import the_loop, timers
from tests.support.virtual import clock
from tests.unit.engine.leases import END, and_collect, standing, until_lost


def why(lease: Lease) -> str:
    """Return what a check says of a lease that is not held."""
    with pytest.raises(LeaseLostError) as caught:
        lease.check()
    assert caught.value.reason in str(caught.value)
    return caught.value.reason


# Until when.


async def test_however_many_wait_for_the_loss_there_is_one_timer_for_it() -> None:
    lease = await ScriptedGrantor().acquire(renew=False)
    waiting = [asyncio.create_task(lease.wait_lost()) for _ in range(3)]
    await asyncio.sleep(1)
    assert timers() == 1
    assert await asyncio.gather(*waiting) == [True] * 3
    assert clock() == END


async def test_a_task_that_waits_for_the_loss_of_a_block_learns_of_it_when_the_block_is_left() -> None:
    grantor = ScriptedGrantor()
    async with grantor.hold(renew=False) as lease:
        waiting = asyncio.create_task(lease.wait_lost())
        await asyncio.sleep(1)
    assert not await waiting
    assert clock() == 1
    await asyncio.sleep(1)
    assert grantor.context.closed
    assert timers() == 0


async def test_a_lease_that_runs_out_leaves_its_session_nothing_to_do() -> None:
    grantor = ScriptedGrantor(renewals=[False])
    lease = await grantor.acquire()
    await asyncio.sleep(30)
    assert lease.lost
    assert not grantor.context.tokens
    await lease.release()
    await asyncio.sleep(1)
    assert grantor.context.closed


# Why.


async def test_a_loss_says_why() -> None:
    cut_off = await ScriptedGrantor(renewals=[RedisConnectionError()]).acquire(ttl=30, max_hold=3600)
    too_long = await ScriptedGrantor().acquire(ttl=3, max_hold=60)
    taken = await ScriptedGrantor(renewals=[False]).acquire(ttl=300)
    unseen = await ScriptedGrantor().acquire(renew=False, ttl=30)
    for _ in range(2):  # and the same later, whatever else has come
        await asyncio.sleep(4000)
        assert why(cut_off) == "not renewed within its 30 s TTL"
        assert why(too_long) == "held for longer than max_hold (60 s), and so not renewed any more"
        assert "gone from the server" in why(taken)
        assert why(unseen) == "not renewed within its 30 s TTL"
    for lease in (cut_off, too_long, taken, unseen):
        assert not await lease.release()
        assert lease.lost


async def test_a_loss_is_noted_once_and_the_first_says_why() -> None:
    lease = await ScriptedGrantor().acquire()
    told: list[str] = []
    state = state_of(lease)
    state.call_on_loss(lambda: told.append(state.validity.reason))
    state.lose("it was revoked")
    state.lose("it was forgotten")
    assert told == ["it was revoked"]
    assert why(lease) == "it was revoked"
    await lease.release()


async def test_a_loss_that_a_thread_has_found_shows_before_the_loop_comes_round() -> None:
    lease = await ScriptedGrantor().acquire(max_hold=1)
    waiting = asyncio.create_task(lease.wait_lost())
    await asyncio.sleep(2)
    state_of(lease).lose_from_thread("it is gone")
    for _ in range(2):
        assert standing(lease) == (False, True, 0.0)
        assert why(lease) == "it is gone"
        await asyncio.sleep(0)
    assert await waiting
    assert clock() == 2
    assert not await lease.release()


async def test_in_a_forked_child_a_lease_is_the_parent_s() -> None:
    grantor = ScriptedGrantor()
    lease, released = await grantor.acquire(), await grantor.acquire()
    assert await released.release()
    asked = len(grantor.asked)
    grantor.context.after_fork()  # as in the child, which has no copy of what runs
    assert standing(lease) == (False, True, 0.0)
    assert standing(released) == (False, False, 0.0)
    assert "forked" in why(lease)
    assert not await lease.renew()
    assert not await lease.release()
    assert standing(lease) == (False, True, 0.0)
    assert len(grantor.asked) == asked
    grantor.session.close()


# Ended, and dropped then.


async def released_after(lease: Lease, seconds: float) -> None:
    the_loop()._jump(seconds)
    assert not await lease.release()


async def noted_after(lease: Lease, seconds: float) -> None:
    assert await lease.wait_lost()


@pytest.mark.parametrize("end", [released_after, noted_after])
@pytest.mark.parametrize("renew", [True, False])
async def test_a_lease_whose_loss_its_holder_knows_may_be_dropped_without_a_word(
    end: Callable[[Lease, float], Coroutine[Any, Any, None]], renew: bool
) -> None:
    grantor = ScriptedGrantor(renewals=[RedisConnectionError()])
    lease = await grantor.acquire(renew=renew)
    await end(lease, END + 1)
    del lease
    gc.collect()
    await asyncio.sleep(100)  # a warning is an error here


@pytest.mark.parametrize("renew", [True, False])
async def test_a_lease_without_references_lapses_at_its_deadline_with_a_warning(renew: bool) -> None:
    grantor = ScriptedGrantor()

    async def forget() -> None:
        await grantor.acquire(renew=renew)

    async def wait() -> None:
        await and_collect(asyncio.create_task(forget()))
        await asyncio.sleep(END - 0.01)
        assert not warned
        await asyncio.sleep(0.02)

    with pytest.warns(ResourceWarning, match="'scripted': a lease was dropped") as warned:
        await wait()
    assert not grantor.times("renew")
    assert not grantor.context.tokens


# In its block.


@pytest.mark.parametrize("renew", [True, False])
async def test_a_body_is_stopped_at_the_deadline_whether_the_lease_was_renewed_or_not(renew: bool) -> None:
    grantor = ScriptedGrantor(renewals=[RedisConnectionError()])
    error = await until_lost(grantor.hold(renew=renew))
    assert clock() == END
    assert error.reason == "not renewed within its 30 s TTL"
    assert bool(grantor.times("renew")) is renew
