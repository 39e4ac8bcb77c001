"""What the cookbook says of leases under freezegun and time-machine, with the real ones."""

import asyncio
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import pytest

from aiolocks import LeaseLostError, LockManager

THEN = datetime(2030, 1, 1, tzinfo=UTC)


def stopped(by: str) -> AbstractContextManager[Any]:
    found: Any = pytest.importorskip(by)
    time: AbstractContextManager[Any] = (
        found.travel(THEN, tick=False) if by == "time_machine" else found.freeze_time(THEN, real_asyncio=True)
    )
    return time


@pytest.mark.rest
@pytest.mark.parametrize("by", ["freezegun", "time_machine"])
async def test_leases_are_renewed_and_lost_in_real_time(by: str) -> None:
    async with LockManager.from_url("memory://", ttl=1.5) as locks:
        with stopped(by):
            begun = time.time()
            async with locks.lock("renewed") as lease:
                await asyncio.sleep(2.0)
                assert lease.held
            lease = await locks.lock("lost", renew=False).acquire()
            await asyncio.sleep(1.6)
            assert lease.lost
            assert time.time() == begun
            assert await locks.lock("lost").locked()  # the server's time stands still


async def test_time_that_is_moved_ends_leases_on_the_server_alone() -> None:
    async with LockManager.from_url("memory://", ttl=10) as locks:
        with stopped("time_machine") as traveller:
            with pytest.raises(LeaseLostError):
                async with locks.lock("moved") as lease:
                    traveller.shift(60)
                    assert lease.held
                    assert not await lease.renew()
