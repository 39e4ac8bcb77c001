"""Every primitive x every promise, on every server: what a lease tells its holder, and how it is renewed and ended."""

import asyncio
import copy
import gc
import pickle
from collections.abc import Callable

import pytest

from aiolocks import Lease, LeaseLostError
from tests.support.inside import block_loop
from tests.support.lateness import SLACK, in_time
from tests.support.primitives import BRIEF, SHORT, STEADY, Make, as_a_stranger, every_row, exclusive_rows, free
from tests.support.virtual import clock

pytest_plugins = ["tests.support.table"]
pytestmark = pytest.mark.asyncio


async def test_a_release_that_ended_a_live_lease_says_true(make: Make) -> None:
    lease = await make().acquire()
    assert await lease.release() is True
    assert await make().locked() is False


@exclusive_rows
async def test_a_second_release_says_false_and_does_no_harm(make: Make) -> None:
    lease = await make().acquire()
    await lease.release()
    async with make() as other:
        assert await lease.release() is False
        assert other.held
        assert await make().locked()


async def test_a_release_of_a_lease_that_the_server_has_forgotten_says_false(make: Make) -> None:
    lease = await make().acquire()
    await make.take_away()
    assert await lease.release() is False


async def test_a_release_of_a_lease_that_has_ended_by_the_clock_says_false(make: Make) -> None:
    lease = await make(ttl=BRIEF, renew=False).acquire()
    block_loop(BRIEF)
    assert await lease.release() is False


async def test_a_released_lease_of_any_primitive_is_neither_held_nor_lost(make: Make) -> None:
    lease = await make().acquire()
    await lease.release()
    assert (lease.held, lease.lost, lease.remaining()) == (False, False, 0.0)


async def test_the_lease_of_a_block_that_was_left_is_neither_held_nor_lost(make: Make) -> None:
    async with make() as lease:
        pass
    assert (lease.held, lease.lost, lease.remaining()) == (False, False, 0.0)


async def test_the_primitive_releases_the_calling_tasks_lease(make: Make) -> None:
    lease = await make().acquire()
    await make().release()
    assert not lease.held
    assert await make().locked() is False


@every_row
async def test_the_primitive_releases_the_newest_lease_of_its_name_first(make: Make) -> None:
    leases = [await make().acquire() for _ in range(make.places)]
    elsewhere = await make("other").acquire()
    held = []
    for _ in leases:
        await make().release()
        held.append([lease.held for lease in leases])
    assert held == [[at < left for at in range(make.places)] for left in reversed(range(make.places))]
    assert await elsewhere.release() is True


async def test_the_primitive_without_a_lease_of_the_task_cannot_be_released(make: Make) -> None:
    with pytest.raises(RuntimeError):
        await make().release()


async def test_the_primitive_does_not_release_the_lease_of_another_task(make: Make) -> None:
    lease = await make().acquire()
    with pytest.raises(RuntimeError):
        await asyncio.create_task(make().release())
    assert await lease.release() is True


async def test_a_lease_got_by_hand_may_be_released_in_another_task(make: Make) -> None:
    lease = await make().acquire()
    assert await asyncio.create_task(lease.release()) is True
    assert await make().locked() is False


async def test_a_lease_got_by_hand_may_be_entered_in_another_task(make: Make) -> None:
    lease = await make().acquire()

    async def work() -> None:
        async with lease as entered:
            assert entered is lease
            assert lease.held

    await asyncio.create_task(work())
    assert await make().locked() is False


@exclusive_rows
async def test_a_body_that_works_for_two_ttls_keeps_its_lease(make: Make) -> None:
    async with make(ttl=STEADY) as lease:
        await asyncio.sleep(2 * STEADY)
        assert lease.held
        assert await make().locked()


async def test_a_lease_without_renewal_ends_with_its_ttl(make: Make) -> None:
    begun = clock()
    async with in_time(SHORT + SLACK * 0.2):
        lease = await make(ttl=SHORT, renew=False).acquire()
        assert await lease.wait_lost() is True
    assert clock() - begun > 0.8 * SHORT
    await free(make())


async def test_a_lease_is_not_renewed_after_max_hold(make: Make) -> None:
    begun = clock()
    async with in_time(2 * SHORT + SLACK * 0.2):
        lease = await make(ttl=SHORT, max_hold=SHORT).acquire()
        assert await lease.wait_lost() is True
    assert clock() - begun > SHORT
    await free(make())


async def test_a_body_is_stopped_after_max_hold(make: Make) -> None:
    with pytest.raises(LeaseLostError):
        async with make(ttl=BRIEF, max_hold=BRIEF):
            await asyncio.sleep(10)


async def test_a_lease_knows_by_the_clock_that_it_ended_while_the_loop_was_blocked(make: Make) -> None:
    lease = await make(ttl=BRIEF).acquire()
    assert (lease.held, lease.lost) == (True, False)
    block_loop(BRIEF)
    assert (lease.held, lease.lost, lease.remaining()) == (False, True, 0.0)
    await lease.release()


async def test_a_check_returns_none_while_the_lease_is_held(make: Make) -> None:
    async with make() as lease:
        checked: object = lease.check()  # type: ignore[func-returns-value]  # that it returns nothing is the promise
        assert checked is None


async def test_a_check_sees_by_the_clock_that_the_lease_has_ended(make: Make) -> None:
    lease = await make(ttl=BRIEF).acquire()
    block_loop(BRIEF)
    with pytest.raises(LeaseLostError) as caught:
        lease.check()
    assert (caught.value.name, caught.value.fencing_token) == (make.called("orders"), lease.fencing_token)
    await lease.release()


async def test_remaining_goes_down_with_the_clock(make: Make) -> None:
    lease = await make(ttl=5).acquire()
    before = lease.remaining()
    block_loop(0.1)
    assert 4 < lease.remaining() <= before - 0.1
    await lease.release()


async def test_waiting_for_the_loss_ends_with_true_when_the_lease_is_lost(make: Make) -> None:
    lease = await make(ttl=SHORT).acquire()
    await make.take_away()
    assert await lease.wait_lost() is True


async def test_waiting_for_the_loss_ends_with_false_when_the_lease_is_released(make: Make) -> None:
    lease = await make().acquire()
    waiting = asyncio.create_task(lease.wait_lost())
    await asyncio.sleep(0)
    await lease.release()
    assert await waiting is False


async def test_waiting_for_the_loss_may_be_cancelled(make: Make) -> None:
    async with make(ttl=STEADY) as lease:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await lease.wait_lost()
        assert lease.held


async def test_a_renewal_by_hand_extends_what_is_left(make: Make) -> None:
    lease = await make(ttl=SHORT, renew=False).acquire()
    assert await lease.renew(30) is True
    assert lease.remaining() > 20
    await asyncio.sleep(1.5 * SHORT)
    assert await lease.release() is True


async def test_a_renewal_by_hand_never_shortens_what_is_granted(make: Make) -> None:
    lease = await make(ttl=30).acquire()
    assert await lease.renew(SHORT) is True
    assert lease.remaining() > 20
    await asyncio.sleep(1.5 * SHORT)
    assert await lease.release() is True


async def test_the_watchdog_never_shortens_what_was_granted_by_hand(make: Make) -> None:
    lease = await make(ttl=SHORT, max_hold=SHORT / 2).acquire()  # one renewal
    await lease.renew(5)
    await asyncio.sleep(1.5 * SHORT)
    assert await lease.release() is True


async def test_a_renewal_by_hand_of_a_lost_lease_says_false(make: Make) -> None:
    lease = await make().acquire()
    await make.take_away()
    assert await lease.renew() is False
    assert lease.lost


async def test_a_renewal_by_hand_of_a_released_lease_says_false(make: Make) -> None:
    lease = await make().acquire()
    await lease.release()
    assert await lease.renew() is False


@exclusive_rows
async def test_a_lapsed_lease_cannot_release_the_lease_of_the_next_holder(make: Make) -> None:
    lock = make(ttl=BRIEF, max_hold=BRIEF / 2)
    lapsed = await as_a_stranger(lock.acquire())
    async with make() as other:
        assert await lapsed.release() is False
        assert other.held
        assert await make().locked()


async def test_a_block_whose_lease_lapsed_leaves_the_next_holder_alone(make: Make) -> None:
    async with make(ttl=BRIEF, renew=False, on_lost="flag"):
        other = await as_a_stranger(make.beside().acquire())
    assert await other.release() is True


@every_row
async def test_a_lease_that_was_dropped_warns_and_is_not_renewed_any_more(make: Make) -> None:
    async def take() -> None:
        await make(ttl=1).acquire()  # so that a busy machine notices before it has lapsed

    async def take_and_leave() -> None:
        await asyncio.create_task(take())
        await asyncio.sleep(0)  # what ends with a task ends in its callbacks
        gc.collect()
        await free(make())
        await asyncio.sleep(0.05)

    with pytest.warns(ResourceWarning, match="orders"):
        await take_and_leave()


@every_row
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
async def test_a_lease_cannot_be_copied(make: Make, way: Callable[[object], object]) -> None:
    """A copy that was dropped ended the renewal of the lease, whose body went on beside the next holder."""
    async with make() as lease:
        with pytest.raises(TypeError, match=r"cannot be copied or pickled.*hand_off"):
            way(lease)
        lease.check()


async def test_a_lease_got_by_hand_is_renewed_though_its_task_has_ended(make: Make) -> None:
    kept: list[Lease] = []

    async def take() -> None:
        kept.append(await make(ttl=STEADY).acquire())

    await asyncio.create_task(take())
    await asyncio.sleep(1.2 * STEADY)
    assert await kept[0].release() is True
