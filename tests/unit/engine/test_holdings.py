"""Who holds what in this process: which names a task is inside of, and its leases."""

import asyncio
import gc
import weakref

import pytest

from aiolocks import Lease
from aiolocks._engine.holdings import Base, BodyTask, Holdings, Loss
from aiolocks._engine.lease import state_of
from aiolocks._engine.lease_state import LeaseState
from aiolocks.testing import ScriptedGrantor
from tests.support.virtual import clock
from tests.unit.engine.leases import and_collect, this_task, until_lost

pytestmark = pytest.mark.asyncio

BASE = b"stub:scripted"


def inside(holdings: Holdings, permits: int, *names: bytes) -> BodyTask:
    grantor = ScriptedGrantor()
    grantor.context.holdings = holdings
    body = BodyTask(this_task(), 0, grantor, names or (BASE,), permits)
    body.enter()
    return body


def ledger() -> Holdings:
    return Holdings(asyncio.get_running_loop(), clock, lambda: None)


async def test_permits_of_a_task_s_open_blocks_add_up_and_are_no_others() -> None:
    holdings, task = ledger(), this_task()
    assert (holdings.inside(task, BASE), holdings.blocks) == (0, 0)
    three, one = inside(holdings, 3), inside(holdings, 1)
    assert (holdings.inside(task, BASE), holdings.blocks) == (4, 2)
    three.leave()
    assert (holdings.inside(task, BASE), holdings.blocks) == (1, 1)
    one.leave()
    assert (holdings.inside(task, BASE), holdings.blocks) == (0, 0)
    assert not holdings.in_use()
    holdings = ledger()
    other = asyncio.create_task(asyncio.sleep(0))
    body = inside(holdings, 1)
    assert (holdings.inside(other, BASE), holdings.inside(this_task(), b"stub:another")) == (0, 0)
    assert holdings.inside(None, BASE) == 0
    await other
    body.leave()


async def test_a_block_whose_lease_ended_before_it_was_left_counts_once() -> None:
    holdings, task = ledger(), this_task()
    three, one = inside(holdings, 3), inside(holdings, 1)
    one.no_longer_inside()
    assert holdings.inside(task, BASE) == 3
    one.no_longer_inside()
    three.leave()
    assert holdings.inside(task, BASE) == 0
    assert (holdings.blocks, holdings.in_use()) == (1, True)
    one.leave()
    one.leave()
    assert (holdings.blocks, holdings.in_use()) == (0, False)


async def test_of_several_names_held_as_one_a_task_is_inside_each() -> None:
    holdings, task = ledger(), this_task()
    both, one = inside(holdings, 1, b"a", b"b"), inside(holdings, 1, b"b")
    held: dict[Base, int] = {b"a": 1, b"b": 2, b"c": 0, (b"a", b"c"): 1, (b"c", b"b"): 2, (b"c", b"d"): 0}
    for base, permits in held.items():
        assert holdings.inside(task, base) == permits, base
    one.leave()
    assert holdings.inside(task, (b"a", b"b")) == 1
    both.leave()
    assert holdings.inside(task, (b"a", b"b")) == 0
    assert not holdings.in_use()


async def test_a_task_that_is_inside_a_block_or_took_a_lease_by_hand_runs_with_it() -> None:
    """What waits at the loop's end for the releases of such tasks must not wait for others."""
    grantor = ScriptedGrantor()
    holdings = grantor.context.holdings
    assert not holdings.running()
    async with grantor.hold():
        assert holdings.running()
    assert not holdings.running()
    lease = await grantor.acquire()
    assert holdings.running()
    await lease.release()
    assert not holdings.running()
    async with grantor.hold():
        assert grantor.context.holdings.newest(this_task(), BASE) is None
    assert grantor.context.holdings.newest(this_task(), BASE) is None


async def test_a_block_is_no_more_counted_when_its_task_has_ended() -> None:
    holdings = ledger()

    async def enter() -> BodyTask:
        return inside(holdings, 1)

    body = await asyncio.create_task(enter())
    await asyncio.sleep(0)
    assert (holdings.blocks, holdings.in_use(), holdings.running()) == (0, False, False)
    body.leave()
    assert holdings.blocks == 0


async def test_a_ledger_that_is_closed_keeps_nothing_and_takes_nothing_in() -> None:
    grantor = ScriptedGrantor()
    holdings = grantor.context.holdings
    lease = await grantor.acquire()
    kept = weakref.ref(lease)
    del lease
    grantor.session.close()
    gc.collect()
    assert kept() is None
    body = inside(holdings, 1)
    assert not holdings.in_use()
    assert not holdings.running()
    body.leave()


async def test_the_newest_lease_of_a_task_alone_comes_first_whichever_is_released() -> None:
    grantor = ScriptedGrantor()
    holdings, task = grantor.context.holdings, this_task()
    first, second, third = [await grantor.acquire() for _ in range(3)]
    assert holdings.newest(task, BASE) is state_of(third)
    await third.release()
    assert holdings.newest(task, BASE) is state_of(second)
    await first.release()
    assert holdings.newest(task, BASE) is state_of(second)
    await second.release()
    assert holdings.newest(task, BASE) is None
    other = asyncio.create_task(grantor.acquire())
    lease = await other
    assert holdings.newest(task, BASE) is holdings.newest(None, BASE) is None
    assert holdings.newest(other, b"stub:another") is None
    await lease.release()


async def test_the_newest_is_the_last_to_begin_though_a_failover_gave_it_a_smaller_fencing_token() -> None:
    grantor = ScriptedGrantor(grants=[100, 50], renewals=[False])
    older = await grantor.acquire()
    assert not await older.renew()
    assert older.lost
    newer = await grantor.acquire()
    holdings = grantor.context.holdings
    assert holdings.newest(this_task(), BASE) is state_of(newer)
    await newer.release()
    loss = holdings.newest(this_task(), BASE)
    assert isinstance(loss, Loss)
    assert loss.fence == 100


async def test_a_loss_that_a_block_reports_leaves_that_of_a_lease_taken_by_hand() -> None:
    grantor = ScriptedGrantor(grants=[100, 150], renewals=[False, False])
    assert not await (await grantor.acquire()).renew()
    await until_lost(grantor.hold(ttl=1))
    loss = grantor.context.holdings.newest(this_task(), BASE)
    assert isinstance(loss, Loss)
    assert loss.fence == 100


async def test_a_loss_that_a_block_reports_leaves_those_of_several_leases_taken_by_hand() -> None:
    grantor = ScriptedGrantor(grants=[100, 150, 200], renewals=[False])
    first, second = [await grantor.acquire() for _ in range(2)]
    async with grantor.hold(on_lost="flag") as third:
        for lease in (first, second, third):
            assert not await lease.renew()
    for _ in range(2):
        assert isinstance(grantor.context.holdings.newest(this_task(), BASE), Loss)
    assert grantor.context.holdings.newest(this_task(), BASE) is None


async def test_the_newest_loss_is_that_of_the_lease_granted_last_whichever_is_lost_first() -> None:
    grantor = ScriptedGrantor(grants=[100, 150, 200], renewals=[False])
    older, newer, newest = [await grantor.acquire() for _ in range(3)]
    assert (await newer.renew(), await older.renew()) == (False, False)
    holdings = grantor.context.holdings
    assert holdings.newest(this_task(), BASE) is state_of(newest)
    await newest.release()
    loss = holdings.newest(this_task(), BASE)
    assert isinstance(loss, Loss)
    assert loss.fence == newer.fencing_token
    assert not await older.release()
    assert holdings.newest(this_task(), BASE) is None


async def test_the_ledger_keeps_no_lease_of_a_task_that_ended() -> None:
    grantor = ScriptedGrantor()

    async def take() -> "weakref.ref[Lease]":
        return weakref.ref(await grantor.acquire())

    lease = await and_collect(asyncio.create_task(take()))
    assert lease() is None
    state = grantor.context.holdings.newest_unreferenced(BASE)
    assert isinstance(state, LeaseState)
    assert await Lease(state).release()
    assert grantor.context.holdings.newest_unreferenced(BASE) is None


async def test_neither_a_lease_nor_the_ledger_keeps_a_task_that_has_ended() -> None:
    grantor = ScriptedGrantor()

    async def take() -> "tuple[Lease, weakref.ref[asyncio.Task[object]]]":
        return await grantor.acquire(), weakref.ref(this_task())

    lease, task = await and_collect(asyncio.create_task(take()))
    assert task() is None
    assert await lease.release()

    async def take_and_release() -> "weakref.ref[asyncio.Task[object]]":
        await (await grantor.acquire()).release()
        async with grantor.hold():
            pass
        return weakref.ref(this_task())

    task = await and_collect(asyncio.create_task(take_and_release()))
    assert task() is None
