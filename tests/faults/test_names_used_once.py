"""Names that are used once and never again, as handlers make them, leave nothing behind in the process."""

import asyncio
import contextlib
import gc
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from aiolocks import AcquireTimeoutError, Lock, LockManager, RWLock, with_lock
from tests.support.primitives import rows_where

TIMES = 100
_numbers = itertools.count(10_000)

Use = Callable[[Redis, str], Awaitable[object]]


def _block(make: Callable[[Redis, str], Any]) -> Use:
    async def use(client: Redis, name: str) -> None:
        async with make(client, name):
            pass

    return use


async def _by_hand(client: Redis, name: str) -> None:
    await (await Lock(client, name).acquire()).release()


async def _decorated(client: Redis, name: str) -> None:
    @with_lock(client, "decorated:{name}")
    async def work(name: str) -> None:
        pass

    await work(name)


async def _both_sides(client: Redis, name: str) -> None:
    rw = RWLock(client, name)
    async with rw.read:
        pass
    async with rw.upgradeable as lease, lease.upgrade():
        pass


async def _contended(client: Redis, name: str) -> None:
    async def one() -> None:
        async with Lock(client, name):
            await asyncio.sleep(0)

    await asyncio.gather(one(), one(), one())


async def _in_vain(client: Redis, name: str) -> None:
    async with Lock(client, name):
        assert await Lock(client, name).try_acquire() is None


async def _given_up(client: Redis, name: str) -> None:
    lease = await Lock(client, name).acquire()
    with contextlib.suppress(AcquireTimeoutError, RedisError):  # the latter where it was too late to ask
        await Lock(client, name).acquire(timeout=0.002)
    await lease.release()


USES: dict[str, Use] = {
    **{row.id: _block(row.make) for row in rows_where().values()}, "both sides": _both_sides, "by hand": _by_hand,
    "LockManager": _block(lambda client, name: LockManager(client, ttl=20).lock(name)), "with_lock": _decorated,
    "wait_release=False": _block(lambda client, name: Lock(client, name, wait_release=False)), "contended": _contended,
    "in vain": _in_vain, "given up": _given_up, "asked about": lambda client, name: Lock(client, name).locked(),
}  # fmt: skip


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Let nothing be collected: what refers to itself would stay."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _objects() -> Counter[str]:
    """Count what there is of ours; of others there may be one thing more or less at any moment."""
    return Counter(
        f"{type(one).__module__}.{type(one).__qualname__}"
        for one in gc.get_objects()
        if str(type(one).__module__).startswith("aiolocks")
    )


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_nothing_of_ours_stays_of_a_name_that_is_used_once(redis: Redis, uncollected: None, use: Use) -> None:
    async def rounds() -> None:
        for _ in range(TIMES):
            await use(redis, f"once:{next(_numbers)}")

    await rounds()
    before, all_before = _objects(), len(gc.get_objects())
    await rounds()
    grown = {what: count for what, count in (_objects() - before).items() if count >= TIMES / 10}
    assert not grown
    assert len(gc.get_objects()) - all_before < 2 * TIMES  # a semaphore's declared limit is kept, for a while
