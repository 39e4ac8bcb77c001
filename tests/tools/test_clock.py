"""The clock that tests move, and what follows it."""

import asyncio

import pytest

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError, Lock, LockManager
from aiolocks.testing import Clock, lose

pytestmark = pytest.mark.asyncio
pytest_plugins = ["aiolocks.testing.plugin"]


async def test_a_lease_that_is_renewed_outlives_its_ttl(locks: LockManager, clock: Clock) -> None:
    async with locks.lock("orders:42", ttl=10) as lease:
        await clock.advance(600)
        assert lease.held
        assert lease.remaining() > 5


async def test_by_the_fake_clock_a_lease_that_is_not_renewed_ends(locks: LockManager, clock: Clock) -> None:
    lease = await locks.lock("orders:42", ttl=10, renew=False).acquire()
    await clock.advance(9)
    assert lease.held
    await clock.advance(2)
    assert lease.lost
    assert not await locks.lock("orders:42").locked()


async def test_the_body_is_stopped_when_its_time_is_over(locks: LockManager, clock: Clock) -> None:
    async def work() -> None:
        async with locks.lock("orders:42", ttl=10, renew=False):
            await asyncio.sleep(3600)

    working = asyncio.ensure_future(work())
    await clock.advance(20)
    with pytest.raises(LeaseLostError):
        await working


async def test_waiters_and_their_time_outs_follow(locks: LockManager, clock: Clock) -> None:
    lease = await locks.lock("orders:42", ttl=10, renew=False).acquire()
    patient = asyncio.ensure_future(locks.lock("orders:42").acquire())
    hasty = asyncio.ensure_future(locks.lock("orders:42").acquire(timeout=5))
    await clock.advance(6)
    assert not patient.done()
    with pytest.raises(AcquireTimeoutError):
        await hasty
    await clock.advance(6)
    assert (await patient).fencing_token > lease.fencing_token


async def test_a_clock_goes_on_only_moves_no_other_server_s_time_and_is_made_before_the_first_lock(
    locks: LockManager, clock: Clock
) -> None:
    with pytest.raises(ValueError, match="never goes back"):
        await clock.advance(-1)
    with pytest.raises(TypeError, match="memory://"):
        Clock(LockManager.from_url("redis://localhost"))
    async with locks.lock("orders:42"):
        with pytest.raises(RuntimeError, match="before the first lock"):
            Clock(locks)


async def test_a_lease_is_lost_on_request(locks: LockManager) -> None:
    with pytest.raises(LeaseLostError, match="by a test"):
        async with locks.lock("orders:42") as lease:
            lose(lease)
            await asyncio.sleep(3600)
    lease = await locks.lock("orders:42").acquire(timeout=1)
    lose(lease)
    assert lease.lost
    await (await locks.lock("orders:42").acquire(timeout=1)).release()


async def test_the_server_of_the_fixture_is_a_real_one(redis_server: str) -> None:
    async with LockManager.from_url(redis_server) as locks, locks.lock("orders:42") as lease:
        assert isinstance(lease, Lease)
        assert await Lock(locks.client, "orders:42").locked()
