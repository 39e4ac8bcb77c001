"""What is known of one lease, in virtual time: until when it counts, how it ends, and what is said of why."""

import asyncio
import gc

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import Lease, LeaseLostError
from aiolocks._engine.lease import state_of
from aiolocks.testing import ScriptedGrantor
from tests.support.jumping import the_loop, timers
from tests.support.virtual import clock
from tests.unit.engine.leases import END, and_collect, standing


def why(lease: Lease) -> str:
    with pytest.raises(LeaseLostError) as caught:
        lease.check()
    assert caught.value.reason in str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize("released", [True, False])
async def test_however_many_wait_for_the_loss_they_learn_of_it_by_one_timer_or_of_the_release(released: bool) -> None:
    lease = await ScriptedGrantor().acquire(renew=False)
    waiting = [asyncio.create_task(lease.wait_lost()) for _ in range(3)]
    await asyncio.sleep(1)
    assert timers() == 1
    if released:
        await lease.release()
    assert (await asyncio.gather(*waiting), clock()) == ([not released] * 3, 1 if released else END)


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
    assert (told, why(lease)) == (["it was revoked"], "it was revoked")
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


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize("renew", [True, False])
async def test_a_lease_whose_loss_its_holder_knows_may_be_dropped_without_a_word(released: bool, renew: bool) -> None:
    lease = await ScriptedGrantor(renewals=[RedisConnectionError()]).acquire(renew=renew)
    if released:
        the_loop()._jump(END + 1)
        assert not await lease.release()
    else:
        assert await lease.wait_lost()
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
