"""Every primitive x every promise, on every server: what a lease tells its holder, and how it is renewed and ended."""

import asyncio
import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from aiolocks import LeaseLostError
from tests.support.inside import block_loop
from tests.support.lateness import SLACK, in_time
from tests.support.primitives import BRIEF, SHORT, STEADY, Make, every_row, exclusive_rows, free
from tests.support.virtual import clock


@exclusive_rows
async def test_a_release_of_a_live_lease_says_true_and_any_other_says_false_and_does_no_harm(make: Make) -> None:
    lease = await make().acquire()
    assert await lease.release() is True
    assert (lease.held, lease.lost, lease.remaining()) == (False, False, 0.0)
    assert await make().locked() is False
    async with make() as other:
        assert await lease.release() is False
        assert other.held
        assert await make().locked()
    forgotten = await make().acquire()
    await make.take_away()
    assert await forgotten.release() is False


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


async def test_the_primitive_does_not_release_the_lease_of_another_task(make: Make) -> None:
    lease = await make().acquire()
    with pytest.raises(RuntimeError):
        await asyncio.create_task(make().release())
    with pytest.raises(RuntimeError):
        await make("other").release()
    assert await asyncio.create_task(lease.release()) is True, "the lease itself may be released anywhere"
    assert await make().locked() is False


@exclusive_rows
async def test_a_body_that_works_for_two_ttls_keeps_its_lease(make: Make) -> None:
    async with make(ttl=STEADY) as lease:
        await asyncio.sleep(2 * STEADY)
        assert lease.held
        assert await make().locked()


@pytest.mark.parametrize(
    ("terms", "least", "most"), [({"renew": False}, 0.8, 1), ({"max_hold": SHORT}, 1, 2)], ids=["never", "max_hold"]
)
async def test_a_lease_that_is_renewed_no_more_ends_with_its_ttl(
    make: Make, terms: dict[str, Any], least: float, most: float
) -> None:
    begun = clock()
    async with in_time(most * SHORT + SLACK * 0.2):
        lease = await make(ttl=SHORT, **terms).acquire()
        assert await lease.wait_lost() is True
    assert clock() - begun > least * SHORT
    await free(make())


async def test_a_lease_knows_by_the_clock_that_it_ended_while_the_loop_was_blocked(make: Make) -> None:
    lease = await make(ttl=BRIEF).acquire()
    assert (lease.held, lease.lost) == (True, False)
    block_loop(BRIEF)
    assert (lease.held, lease.lost, lease.remaining()) == (False, True, 0.0)
    with pytest.raises(LeaseLostError) as caught:
        lease.check()
    assert (caught.value.name, caught.value.fencing_token) == (make.called("orders"), lease.fencing_token)
    assert await lease.release() is False


@pytest.mark.parametrize(("ttl", "renewed"), [(SHORT, 30), (30, SHORT)], ids=["extends", "never shortens"])
async def test_after_a_renewal_by_hand_a_lease_lasts_the_longer_time(make: Make, ttl: float, renewed: float) -> None:
    lease = await make(ttl=ttl, renew=ttl > renewed).acquire()
    assert await lease.renew(renewed) is True
    assert lease.remaining() > 20
    await asyncio.sleep(1.5 * SHORT)
    assert await lease.release() is True


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
