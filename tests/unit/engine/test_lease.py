"""The lease in its holder's hands, in virtual time."""

import asyncio
import contextlib
import gc

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockNotOwnedError

from aiolocks import Lease, LeaseLostError
from aiolocks._core.answers import NotNowError
from aiolocks._core.timing import deadline
from aiolocks._core.tokens import LENGTH
from aiolocks._engine.holdings import Loss
from aiolocks._engine.lease_state import GONE_FROM_SERVER, LeaseState
from aiolocks.testing import After, ScriptedGrantor
from tests.support.inside import block_loop
from tests.support.jumping import timers
from tests.support.virtual import clock
from tests.unit.engine.leases import END, later, standing, this_task, until_lost


async def test_a_lease_shows_what_was_granted_and_how_it_stands_but_no_token() -> None:
    grantor = ScriptedGrantor(grants=[42], name="orders:42")
    lease, other = await grantor.acquire(ttl=30), await grantor.acquire(ttl=30, renew=False)
    assert (lease.name, lease.fencing_token) == ("orders:42", 42)
    assert (lease.token.encode(), len(lease.token)) == (grantor.requests[0].token, LENGTH)
    assert repr(lease).endswith(" held>")
    await lease.release()
    for _ in range(2):
        assert standing(lease) == (False, False, 0.0)
        assert repr(lease).endswith(" released>")
        with pytest.raises(LeaseLostError, match="released"):
            lease.check()
        assert not await lease.renew()
        await asyncio.sleep(3600)
    assert not grantor.times("renew")
    with pytest.raises(LockNotOwnedError, match="orders:42") as caught:
        other.check()
    assert repr(other).endswith(" lost>")
    assert "orders:42" in repr(other)
    for text in (str(caught.value), repr(caught.value), repr(other)):
        assert other.token not in text
    assert not await other.release()


async def test_predicates_are_right_even_when_the_loop_was_blocked() -> None:
    lease = await ScriptedGrantor().acquire(ttl=30)
    block_loop(END - 0.001)
    assert standing(lease)[:2] == (True, False)
    block_loop(0.001)
    assert standing(lease) == (False, True, 0.0)
    with pytest.raises(LeaseLostError):
        lease.check()
    assert not await lease.release()


async def test_renew_counts_from_its_request() -> None:
    grantor = ScriptedGrantor(renewals=[After(3, True)])
    lease = await grantor.acquire(ttl=30, renew=False)
    await asyncio.sleep(10)
    assert await lease.renew()
    assert clock() == 13
    assert lease.remaining() == pytest.approx(deadline(sent_at=10, ttl=30) - 13)
    await lease.release()


@pytest.mark.parametrize(("ttl", "until"), [(4.0, deadline(sent_at=0, ttl=4)), (60.0, 10.0)])
async def test_renew_rides_out_a_busy_server_for_ten_seconds_or_its_lease(ttl: float, until: float) -> None:
    grantor = ScriptedGrantor(renewals=[NotNowError("BUSY a script runs")])
    lease = await grantor.acquire(ttl=ttl, renew=False)
    with pytest.raises(NotNowError):
        await lease.renew()
    assert until - 0.25 <= clock() < until
    await lease.release()


async def test_an_unconfirmed_renewal_raises_and_changes_nothing() -> None:
    trouble = RedisConnectionError("cut")
    lease = await ScriptedGrantor(renewals=[trouble]).acquire(ttl=30, renew=False)
    with pytest.raises(RedisConnectionError) as caught:
        await lease.renew()
    assert caught.value is trouble
    assert standing(lease) == (True, False, END)
    await lease.release()


async def test_a_renewal_by_hand_that_is_read_behind_the_deadline_revives_nothing() -> None:
    """Although it came in time, and counted from its request there would be something left."""
    lease = await ScriptedGrantor(renewals=[After(5, True)]).acquire(ttl=30, renew=False)
    await asyncio.sleep(20)
    renewal = asyncio.create_task(lease.renew())
    await asyncio.sleep(1)
    block_loop(15)
    assert standing(lease) == (False, True, 0.0)
    assert not await renewal
    assert standing(lease) == (False, True, 0.0)
    assert not await lease.release()


async def test_a_renewal_refused_after_the_release_signals_no_loss() -> None:
    lease = await ScriptedGrantor(renewals=[After(5, False)]).acquire(ttl=30, renew=False)
    renewal = asyncio.create_task(lease.renew())
    await asyncio.sleep(1)
    assert await lease.release()
    assert not await renewal
    assert not lease.lost


async def test_release_says_true_once() -> None:
    grantor = ScriptedGrantor(withdrawals=[After(0.5, True)])
    lease = await grantor.acquire()
    assert sorted(await asyncio.gather(lease.release(), lease.release())) == [False, True]
    assert not await lease.release()
    assert len(grantor.times("withdraw")) == 1


async def test_release_of_a_lost_lease_says_false_and_withdraws_it_all_the_same() -> None:
    """The loss may be ours alone: the server may still hold others off on its behalf."""
    grantor = ScriptedGrantor()
    lease = await grantor.acquire(renew=False)
    await asyncio.sleep(31)
    assert not await lease.release()
    assert grantor.tokens("withdraw") == [lease.token.encode()]
    assert lease.lost
    await asyncio.sleep(0.1)


async def test_release_is_retried_through_an_outage_that_the_lease_outlasts() -> None:
    grantor = ScriptedGrantor(withdrawals=[RedisConnectionError("refused")])
    lease = await grantor.acquire(ttl=30)
    later(3, setattr, grantor, "_withdrawals", [True])
    assert await lease.release()
    assert 3 < clock() < 4


@pytest.mark.parametrize(("ttl", "until"), [(30, 10), (3, deadline(sent_at=0, ttl=3))])
async def test_an_unconfirmed_release_raises_redis_own_error_in_the_end(ttl: float, until: float) -> None:
    trouble, other = RedisConnectionError("refused"), ScriptedGrantor()
    grantor = ScriptedGrantor(withdrawals=[trouble], session=other.session)
    async with other.hold():
        lease = await grantor.acquire(ttl=ttl)
        with pytest.raises(RedisConnectionError) as caught:
            await lease.release()
        assert caught.value is trouble
        assert until - 1 <= clock() <= until
        assert standing(lease) == (False, False, 0.0)
        assert not grantor.times("renew")


async def test_a_cancelled_release_goes_on_in_the_background() -> None:
    grantor = ScriptedGrantor(withdrawals=[After(0.2, ConnectionError()), True])
    lease = await grantor.acquire()
    task = asyncio.create_task(lease.release())
    asyncio.get_running_loop().call_later(0.1, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert clock() == 0.1
    assert not lease.held
    await asyncio.sleep(0.3)
    assert len(grantor.times("withdraw")) == 2


async def test_a_block_may_be_in_another_task_than_the_acquire() -> None:
    grantor = ScriptedGrantor(renewals=[False])
    lease = await asyncio.create_task(grantor.acquire())
    await asyncio.create_task(until_lost(lease))
    assert grantor.tokens("withdraw") == [lease.token.encode()]
    await asyncio.sleep(3600)  # and nobody else was cancelled


async def test_a_lease_that_is_over_cannot_be_entered() -> None:
    grantor = ScriptedGrantor()
    released = await grantor.acquire()
    await released.release()
    lost = await grantor.acquire(renew=False)
    block_loop(31)
    for lease in (released, lost):
        with pytest.raises(LeaseLostError):
            async with lease:
                pytest.fail("entered")
    await lost.release()


async def forgotten(grantor: ScriptedGrantor, *, at: float) -> None:
    """Take a lease in a task that ends with it, and wait until *at*."""
    with pytest.warns(ResourceWarning, match="'scripted'") if at > END else contextlib.nullcontext():
        await asyncio.create_task(forget(grantor))
        await asyncio.sleep(1)
        gc.collect()
        await asyncio.sleep(at - clock())


async def forget(grantor: ScriptedGrantor) -> None:
    await grantor.acquire()


def newest(grantor: ScriptedGrantor) -> LeaseState | Loss | None:
    return grantor.context.holdings.newest(this_task(), f"stub:{grantor.name}".encode())


@pytest.mark.parametrize(("at", "remembered"), [(END - 1, True), (END + 29, True), (END + 31, False)])
async def test_a_forgotten_lease_is_remembered_until_a_ttl_after_it_lapsed(at: float, remembered: bool) -> None:
    grantor = ScriptedGrantor()
    holdings = grantor.context.holdings
    await forgotten(grantor, at=at)
    assert holdings.in_use() == remembered
    found = holdings.newest_unreferenced(b"stub:scripted")
    assert (found is not None, isinstance(found, Loss)) == (remembered, remembered and at > END)
    assert holdings.newest_unreferenced(b"stub:scripted") is None
    assert not holdings.in_use()
    if at < END:
        assert isinstance(found, LeaseState)
        assert await Lease(found).release()


async def test_a_lease_that_lapsed_before_a_late_loop_noticed_its_drop_is_remembered_for_a_ttl() -> None:
    grantor = ScriptedGrantor()
    leases = [await asyncio.create_task(grantor.acquire())]
    await asyncio.sleep(1)
    leases.clear()
    gc.collect()
    block_loop(100)
    with pytest.warns(ResourceWarning, match="'scripted'"):
        await asyncio.sleep(29)
    assert grantor.context.holdings.newest_unreferenced(b"stub:scripted") is not None


async def test_of_several_leases_that_were_forgotten_each_is_found_once_and_the_newest_first() -> None:
    grantor = ScriptedGrantor()
    holdings = grantor.context.holdings
    for at in (2, 4, 6):
        await forgotten(grantor, at=at)
    found = [holdings.newest_unreferenced(b"stub:scripted") for _ in range(4)]
    assert [state and state.fence for state in found] == [3, 2, 1, None]
    for state in found[:3]:
        assert isinstance(state, LeaseState)
        assert await Lease(state).release()


@pytest.mark.parametrize("closed", [True, False])
async def test_once_a_session_has_ended_no_warning_is_given_of_its_forgotten_leases(closed: bool) -> None:
    grantor = ScriptedGrantor()
    await forgotten(grantor, at=5)
    if closed:
        grantor.session.close()
    with contextlib.nullcontext() if closed else pytest.warns(ResourceWarning, match="'scripted'"):
        await asyncio.sleep(100)  # a warning is an error here
    assert not grantor.context.holdings.in_use()


async def test_a_lease_that_was_lost_can_be_named_once_while_its_task_runs_and_then_its_session_ends() -> None:
    grantor = ScriptedGrantor(renewals=[False])

    async def lose_it() -> None:
        lease = await grantor.acquire()
        await lease.wait_lost()
        await asyncio.sleep(29)
        assert not grantor.context.closed
        loss = newest(grantor)
        assert isinstance(loss, Loss)
        assert loss.reason == GONE_FROM_SERVER
        await asyncio.sleep(0.6)
        assert grantor.context.closed

    await asyncio.create_task(lose_it())


async def test_each_loss_is_remembered_for_its_own_ttl() -> None:
    short = ScriptedGrantor(name="short")
    long = ScriptedGrantor(name="long", session=short.session)
    kept = [await short.acquire(ttl=3, renew=False), await long.acquire(ttl=30, renew=False)]
    await kept[1].wait_lost()
    assert not kept[0].held
    assert newest(short) is None
    assert isinstance(newest(long), Loss)
    assert timers() > 0
    short.session.close()
    assert timers() == 0


async def test_a_newer_loss_of_a_name_is_remembered_for_a_ttl_of_its_own() -> None:
    grantor = ScriptedGrantor()
    await (await grantor.acquire(renew=False)).wait_lost()
    await asyncio.sleep(20)
    second = await grantor.acquire(ttl=5, renew=False)
    await second.wait_lost()
    await asyncio.sleep(4)
    loss = newest(grantor)
    assert isinstance(loss, Loss)
    assert loss.fence == second.fencing_token
    assert isinstance(newest(grantor), Loss)  # that of the first
    assert newest(grantor) is None
    await asyncio.sleep(1)
    assert grantor.context.closed


async def test_what_a_task_has_lost_is_forgotten_with_the_task() -> None:
    grantor = ScriptedGrantor()

    async def lose() -> None:
        await (await grantor.acquire(renew=False)).wait_lost()
        assert grantor.context.holdings.in_use()

    await asyncio.create_task(lose())
    await asyncio.sleep(0)
    assert not grantor.context.holdings.in_use()
    await asyncio.sleep(0.6)
    assert grantor.context.closed
    assert timers() == 0


async def test_a_lease_taken_by_hand_is_renewed_while_its_task_runs() -> None:
    """The task can still name it: `lock.release()` ends the newest lease that the calling task took."""
    grantor = ScriptedGrantor()
    await grantor.acquire()
    gc.collect()
    await asyncio.sleep(3600)
    state = newest(grantor)
    assert isinstance(state, LeaseState)
    assert state.validity.held
    assert await Lease(state).release()
