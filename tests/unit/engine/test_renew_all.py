"""All leases renewed at once, after the link to their server has gone or come."""

import asyncio
from functools import partial

import pytest

from aiolocks._engine.lease_state import LeaseState
from aiolocks.testing import After, ScriptedGrantor


async def test_a_lease_that_is_renewed_at_once_counts_from_then_on() -> None:
    grantor = ScriptedGrantor()
    async with grantor.hold(ttl=30):
        await asyncio.sleep(1)
        asked = grantor.context.clock()
        grantor.session.watchdog.renew_all()
        await asyncio.sleep(20)
        first, second, *_ = grantor.times("renew")
        assert first == pytest.approx(asked)
        assert 9 <= second - first <= 11, "a third of the TTL later, as ever"


async def test_a_loss_is_known_as_soon_as_the_server_is_asked_again() -> None:
    grantor = ScriptedGrantor(renewals=[False])
    lease = await grantor.acquire(ttl=30)
    await asyncio.sleep(1)
    assert lease.held
    grantor.session.watchdog.renew_all()
    await asyncio.sleep(0.001)
    assert lease.lost


async def test_a_link_that_is_cut_again_and_again_has_all_renewed_four_times_a_second_at_most() -> None:
    grantor = ScriptedGrantor()
    async with grantor.hold(ttl=30):
        begun = grantor.context.clock()
        for _ in range(100):
            grantor.session.watchdog.renew_all()
            await asyncio.sleep(0.02)
        assert 8 <= len([at for at in grantor.times("renew") if at <= begun + 2]) <= 9


async def test_a_renewal_of_all_skips_leases_that_are_on_their_way_or_not_renewed_any_more() -> None:
    on_its_way = ScriptedGrantor(renewals=[After(5, True)])
    async with on_its_way.hold(ttl=30), on_its_way.hold(ttl=30, max_hold=1) as bounded:
        await asyncio.sleep(12)
        sent = len(on_its_way.times("renew"))
        assert sent == 1
        on_its_way.session.watchdog.renew_all()
        await asyncio.sleep(0.1)
        assert len(on_its_way.times("renew")) == sent
        assert bounded.held


def _lasts(ttl: float, state: LeaseState) -> bool:
    return state.request.terms.ttl == ttl


async def test_only_the_wanted_leases_are_renewed() -> None:
    grantor = ScriptedGrantor()
    async with grantor.hold(ttl=30), grantor.hold(ttl=20):
        await asyncio.sleep(1)
        for ttl, renewals in ((10, 0), (20, 1), (30, 2)):
            grantor.session.watchdog.renew_all(partial(_lasts, ttl))
            await asyncio.sleep(0.5)
            assert len(grantor.times("renew")) == renewals


async def test_very_many_are_renewed_a_hundred_at_a_time() -> None:
    """Ten thousand at once kept the loop from all else for a second."""
    grantor = ScriptedGrantor()
    leases = [await grantor.acquire(ttl=30) for _ in range(1000)]
    await asyncio.sleep(1)
    begun = grantor.context.clock()
    grantor.session.watchdog.renew_all()
    await asyncio.sleep(0.001)
    assert len(grantor.times("renew")) == 100
    await asyncio.sleep(0.2)
    renewed = grantor.times("renew")
    assert len(renewed) == len(leases)
    assert max(renewed) - begun < 0.1
    for lease in leases:
        await lease.release()
