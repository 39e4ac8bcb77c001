"""What stays of leases that their callers never release: nothing of a lease that has ended, but for one error."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseLostError, Lock, RWLock
from aiolocks.compat import RedisLock
from tests.support.lateness import SLACK, in_time
from tests.support.primitives import SHORT, as_a_stranger, until

pytestmark = pytest.mark.usefixtures("quick_sessions")

MANY = 300

Forgotten = Callable[[], Awaitable[bool]]

BRIEF = 0.3
"""Seconds of a TTL that is meant to lapse."""


def states() -> int:
    """Return how many leases the library knows of, in whatever state."""
    gc.collect()
    return sum(type(known).__name__ in ("LeaseState", "Reentry") for known in gc.get_objects())


@pytest.fixture
def forgotten() -> Forgotten:
    """Says whether the test leaves no more than a few leases behind."""
    before = states()  # of tests whose tracebacks are kept

    async def few() -> bool:
        return states() - before < MANY / 10

    return few


Take = Callable[[Redis, str], Coroutine[Any, Any, object]]


async def dropped(client: Redis, name: str) -> object:
    return await as_a_stranger(lapsed(client, name))


async def lapsed(client: Redis, name: str) -> object:
    return await Lock(client, name, ttl=BRIEF, renew=False).try_acquire()


async def lost(client: Redis, name: str) -> object:
    return await Lock(client, name, ttl=SHORT, max_hold=SHORT / 10).try_acquire()


async def of_redis_py(client: Redis, name: str) -> object:
    return await client.lock(name, timeout=BRIEF, lock_class=RedisLock).acquire(blocking=False)


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore:.*was dropped without being released:ResourceWarning")
@pytest.mark.parametrize("take", [dropped, lapsed, lost, of_redis_py])
async def test_a_session_that_goes_on_forgets_dropped_leases_once_they_have_lapsed(
    client: Redis, forgotten: Forgotten, take: Take
) -> None:
    """And those of a task that goes on."""
    async with Lock(client, "busy"):
        for number in range(MANY):
            assert await take(client, f"job:{number}") not in (None, False)
        await until(forgotten, within=10)


# Released by name.


async def test_a_release_by_name_after_the_lease_has_lapsed_is_an_error_once(client: Redis) -> None:
    lock = Lock(client, "orders", ttl=BRIEF, renew=False)
    lease = await lock.acquire()
    assert await lease.wait_lost()
    with pytest.raises(LeaseLostError, match=r"^lock 'orders': not renewed within its 0.3 s TTL; stop") as caught:
        await lock.release()
    assert (caught.value.name, caught.value.fencing_token) == ("orders", lease.fencing_token)
    with pytest.raises(RuntimeError, match="holds no lease to release"):
        await lock.release()


async def test_a_release_by_name_reports_no_loss_that_the_lease_s_own_release_or_block_reported(client: Redis) -> None:
    lock = Lock(client, "orders", ttl=BRIEF, renew=False)
    lease = await lock.acquire()
    assert await lease.wait_lost()
    assert not await lease.release()
    with pytest.raises(RuntimeError, match="holds no lease to release"):
        await lock.release()
    with pytest.raises(LeaseLostError):
        async with await lock.acquire():
            await asyncio.sleep(10)
    with pytest.raises(RuntimeError, match="holds no lease to release"):
        await lock.release()


async def test_a_revoked_lease_is_released_by_name_at_once_though_its_loss_is_known(client: Redis) -> None:
    """A caller that stops when it finds its lease lost lets the next waiter in, and not only the end of the TTL."""
    reading = RWLock(client, "orders", ttl=3).read
    lease = await reading.acquire()
    revoking = asyncio.create_task(reading.revoke())
    assert await lease.wait_lost()
    assert not revoking.done()
    with pytest.raises(LeaseLostError, match="revoked"):
        await reading.release()
    async with in_time(SLACK * 0.15):
        await revoking
