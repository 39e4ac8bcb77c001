"""Every primitive x every promise, on every server: what is promised to those who ask and wait.

The table goes on in `test_conformance_lease.py`, `..._loss.py`, `..._blocks.py` and `..._session.py`.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiolocks import AcquireTimeoutError, Lease
from tests.support import primitives
from tests.support.lateness import SLACK, bounded, in_time
from tests.support.of_asyncio import and_of_asyncio
from tests.support.primitives import ROWS, SOON, WITH_A_QUEUE, Acquirable, Make, as_a_stranger, every_row, queued

Ask = Callable[[Acquirable, float | None], Coroutine[Any, Any, None]]


async def by_acquire(acquirable: Acquirable, timeout: float | None) -> None:
    lease = await acquirable.acquire(timeout=timeout)
    await lease.release()


async def by_hold(acquirable: Acquirable, timeout: float | None) -> None:
    async with acquirable.hold(timeout=timeout):
        pass


either_way = pytest.mark.parametrize("ask", [by_acquire, by_hold])


@pytest.mark.core
@every_row
async def test_a_block_has_a_held_lease_of_that_name(make: Make) -> None:
    async with make("orders:42", ttl=5) as lease:
        assert isinstance(lease, Lease)
        assert (lease.name, lease.held, lease.lost) == (make.called("orders:42"), True, False)
        assert 4 < lease.remaining() < 5


@every_row
async def test_fencing_tokens_increase_in_the_order_of_grants(make: Make) -> None:
    fences = []
    for _ in range(5):
        leases = await make.fill()
        fences += [lease.fencing_token for lease in leases]
        for lease in leases:
            await lease.release()
    assert all(isinstance(fence, int) for fence in fences)
    assert fences == sorted(set(fences))


@pytest.mark.core
@and_of_asyncio(ROWS)
async def test_no_more_tasks_are_inside_at_once_than_there_are_places(make: Make) -> None:
    """And no fewer: the first to enter wait until all places are taken. Each task gets its turns."""
    inside = most = turns = 0
    all_taken = asyncio.Event()

    async def work() -> None:
        nonlocal inside, most, turns
        for _ in range(3):
            async with make():
                inside, turns = inside + 1, turns + 1
                most = max(most, inside)
                if inside == make.places:
                    all_taken.set()
                await all_taken.wait()
                await asyncio.sleep(0.001)
                inside -= 1

    async with bounded(10 * SLACK):
        await asyncio.gather(*(work() for _ in range(12)))
    assert (most, turns) == (make.places, 12 * 3)


@pytest.mark.core
@and_of_asyncio(row for row in primitives.EVERY_ROW if row.queue)
async def test_waiters_of_a_process_are_granted_in_the_order_of_asking(make: Make) -> None:
    lock, holders = make(), await make.fill()
    granted: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        async with lock as lease:
            granted.append((lease.fencing_token, number))

    tasks = []
    for number in range(8):
        tasks.append(asyncio.create_task(work(number)))
        await queued(lock, number + 1)
    for holder in holders:
        await holder.release()
    await asyncio.gather(*tasks)
    assert [number for _, number in sorted(granted)] == list(range(8))


@either_way
@every_row
async def test_a_wait_that_is_too_long_is_an_error_that_says_all_of_it_and_leaves_nothing(make: Make, ask: Ask) -> None:
    holders = await make.fill()
    with pytest.raises(AcquireTimeoutError) as caught:
        await ask(make(), SOON)
    assert (caught.value.name, caught.value.timeout) == (make.called("orders"), SOON)
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= 30
    now = await make().statistics()
    assert (now.holders, now.waiting) == (make.places, 0)
    for holder in holders:
        await holder.release()
    assert (await make().statistics()).holders == 0


@either_way
async def test_a_timeout_of_zero_asks_once_and_never_queues(make: Make, ask: Ask) -> None:
    (holder,) = await make.fill()
    async with in_time(SLACK * 0.15, "it waited for a re-check"):
        with pytest.raises(AcquireTimeoutError) as caught:
            await ask(make(), 0)
    assert caught.value.timeout == 0
    assert (await make().statistics()).waiting == 0
    await holder.release()
    await ask(make(), 0)


@either_way
async def test_no_timeout_means_the_acquire_timeout_and_an_explicit_none_waits_longer(make: Make, ask: Ask) -> None:
    (holder,) = await make.fill()
    lock = make(acquire_timeout=SOON)
    for waiting in (lock.acquire(), lock.__aenter__()):
        with pytest.raises(AcquireTimeoutError) as caught:
            await waiting
        assert caught.value.timeout == SOON
    waiter = asyncio.create_task(ask(make(acquire_timeout=0.05), None))
    done, _ = await asyncio.wait([waiter], timeout=0.2)
    assert not done
    await holder.release()
    await waiter


@pytest.mark.core
@and_of_asyncio(WITH_A_QUEUE)
async def test_a_cancelled_waiter_leaves_nothing_behind(make: Make) -> None:
    (holder,) = await make.fill()
    waiter = asyncio.create_task(make().acquire())
    await queued(make(), 1)
    waiter.cancel()
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    assert (await make().statistics()).waiting == 0
    await holder.release()


@pytest.mark.core
@and_of_asyncio(ROWS)
async def test_try_acquire_gives_a_lease_while_a_place_is_free_and_then_none(make: Make) -> None:
    leases = [await as_a_stranger(make().try_acquire()) for _ in range(make.places)]
    assert await make().try_acquire() is None
    for lease in leases:
        assert lease is not None
        assert await lease.release()


@primitives.limited_rows_with_a_queue
async def test_try_acquire_never_passes_a_waiter(make: Make) -> None:
    holder, *others = await make.fill()
    waiter = asyncio.create_task(make().acquire())
    await queued(make(), 1)
    _, tried = await asyncio.gather(holder.release(), make().try_acquire())
    assert tried is None
    for lease in [await waiter, *others]:
        await lease.release()


@and_of_asyncio(ROWS)
async def test_locked_says_whether_all_places_are_taken(make: Make) -> None:
    seen = [await make().locked()]
    leases = []
    for _ in range(make.places):
        leases.append(await make().acquire())
        seen.append(await make().locked())
    for lease in leases:
        await lease.release()
        seen.append(await make().locked())
    free = [False] * make.places
    assert seen == [*free, True, *free]


@primitives.every_row_with_a_queue
async def test_statistics_count_holders_and_waiters(make: Make) -> None:
    leases = await make.fill()
    waiter = asyncio.create_task(make().acquire())
    await queued(make(), 1)
    now = await make().statistics()
    assert (now.name, now.holders, now.permits) == (make.called("orders"), make.places, make.places)
    assert now.limit == make.limit
    assert now.fencing_token == leases[-1].fencing_token
    with pytest.raises(dataclasses.FrozenInstanceError):
        now.holders = 7  # type: ignore[misc]  # what must not be possible
    for lease in leases:
        await lease.release()
    await (await waiter).release()
