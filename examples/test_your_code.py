"""Test code that locks: no server, no waiting, and a lease that is lost when the test says so.

    pytest examples/test_your_code.py

passes on memory://, with the fixtures of `pytest_plugins = ["aiolocks.testing.plugin"]`.
"""

import asyncio

import pytest

from aiolocks import AcquireTimeoutError, LeaseLostError, LockManager
from aiolocks.testing import Clock, lose_name, outage

pytestmark = pytest.mark.asyncio
pytest_plugins = ["aiolocks.testing.plugin"]


class Shop:
    def __init__(self, locks: LockManager) -> None:
        self.locks = locks
        self.paid: list[int] = []

    async def pay(self, order: int, seconds: float) -> str:
        try:
            async with self.locks.lock(f"orders:{order}", ttl=10).hold(timeout=5):
                await asyncio.sleep(seconds)  # the bank
                self.paid.append(order)
        except AcquireTimeoutError:
            return "busy"
        except LeaseLostError:
            return "stopped"
        return "paid"


async def test_one_payment_at_a_time_and_a_long_one_is_not_cut_off(locks: LockManager, clock: Clock) -> None:
    shop = Shop(locks)
    first = asyncio.create_task(shop.pay(42, seconds=60))
    second = asyncio.create_task(shop.pay(42, seconds=1))
    await clock.advance(61)
    assert (await first, await second, shop.paid) == ("paid", "busy", [42])


async def test_a_payment_is_stopped_when_its_lease_is_lost(locks: LockManager, clock: Clock) -> None:
    shop = Shop(locks)
    paying = asyncio.create_task(shop.pay(42, seconds=60))
    await clock.advance(30)
    lose_name(locks, "orders:42")
    assert (await paying, shop.paid) == ("stopped", [])


async def test_a_payment_survives_a_short_outage_of_redis(locks: LockManager, clock: Clock) -> None:
    paying = asyncio.create_task(Shop(locks).pay(42, seconds=60))
    await clock.advance(30)
    with outage(locks):
        await clock.advance(5)
    await clock.advance(30)
    assert await paying == "paid"
