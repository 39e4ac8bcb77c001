"""Every primitive x every promise, on every server: blocks within blocks, and blocks and leases of several tasks."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError
from tests.support import primitives
from tests.support.of_asyncio import and_of_asyncio
from tests.support.primitives import ROWS, SHORT, SOON, Acquirable, Make, as_a_stranger, every_row, not_reentrant


async def enter_all(make: Make, stack: AsyncExitStack) -> list[Lease]:
    return [await stack.enter_async_context(make()) for _ in range(make.places)]


async def holding(lock: Acquirable) -> AsyncGenerator[Lease]:
    """A fixture, or a dependency of a web framework."""
    async with lock as lease:
        yield lease


async def close(generator: AsyncGenerator[Lease]) -> None:
    await generator.aclose()


async def go_on(generator: AsyncGenerator[Lease]) -> None:
    with pytest.raises(StopAsyncIteration):
        await anext(generator)


Leave = Callable[[AsyncGenerator[Lease]], Coroutine[Any, Any, None]]


@not_reentrant
async def test_a_task_that_would_wait_for_itself_gets_an_error_or_none(make: Make) -> None:
    async with AsyncExitStack() as stack:
        leases = await enter_all(make, stack)
        with pytest.raises(RuntimeError):
            await make.beside().acquire(timeout=5)
        with pytest.raises(RuntimeError):
            async with make.beside():
                pytest.fail("the body ran")
        assert (await make().statistics()).waiting == 0
        assert await make.beside().try_acquire() is None
        assert all(lease.held for lease in leases)


@primitives.one_place_not_reentrant
async def test_a_task_waits_like_any_other_unless_it_is_inside_the_block_itself(make: Make) -> None:
    lease = await make().acquire()
    with pytest.raises(AcquireTimeoutError):
        await make().acquire(timeout=SOON)
    async with lease:
        with pytest.raises(AcquireTimeoutError):
            await asyncio.create_task(make().acquire(timeout=SOON))
        with pytest.raises(RuntimeError):
            await make.beside().acquire(timeout=5)


async def test_the_lease_of_a_block_cannot_be_entered_in_it(make: Make) -> None:
    """The inner block would release it, and the outer one go on without."""
    async with make() as lease:
        with pytest.raises(RuntimeError, match="open already"):
            await lease.__aenter__()
        assert lease.held
    async with make().hold() as lease:
        with pytest.raises(RuntimeError, match="open already"):
            await lease.__aenter__()
        assert lease.held
    with pytest.raises(LeaseLostError):
        await lease.__aenter__()


@and_of_asyncio(ROWS)
async def test_tasks_that_share_one_object_never_interfere(make: Make) -> None:
    lock = make()
    inside: set[str] = set()

    async def work() -> None:
        for _ in range(5):
            async with lock as lease:
                inside.add(lease.token)
                assert len(inside) <= make.places
                await asyncio.sleep(0.001)
                assert lease.held
                inside.remove(lease.token)

    await asyncio.gather(*(work() for _ in range(6)))


@primitives.exclusive_rows
async def test_a_lapsed_lease_or_its_block_cannot_release_that_of_another_task_with_the_same_object(make: Make) -> None:
    lock = make(ttl=SHORT, max_hold=SHORT / 2)
    lapsed = await lock.acquire()
    other = await as_a_stranger(lock.acquire())
    assert not lapsed.held
    assert await lapsed.release() is False
    with pytest.raises(RuntimeError):
        await lock.release()
    assert other.held
    assert await other.release() is True
    lock = make(ttl=SHORT, renew=False, on_lost="flag")
    async with lock as lapsed:
        other = await as_a_stranger(lock.acquire())
        assert lapsed.lost
    assert await other.release() is True


@pytest.mark.parametrize("leave", [close, go_on])
async def test_a_block_of_a_generator_that_ends_in_another_task_is_released(make: Make, leave: Leave) -> None:
    generator = holding(make())
    lease = await anext(generator)
    await asyncio.create_task(leave(generator))
    assert not lease.held
    assert await make().locked() is False


@every_row
async def test_blocks_left_in_another_task_release_their_own_leases(make: Make) -> None:
    lock = make()
    generators = [holding(lock) for _ in range(make.places)]
    leases = [await anext(generator) for generator in generators]
    held = []
    for generator in generators:
        await asyncio.create_task(close(generator))
        held.append([lease.held for lease in leases])
    assert held == [[at > closed for at in range(make.places)] for closed in range(make.places)]
    assert (await lock.statistics()).holders == 0


async def test_a_block_is_stopped_by_its_loss_though_one_around_it_was_left_first(make: Make) -> None:
    first = holding(make("one"))
    await anext(first)
    with pytest.raises(LeaseLostError):
        async with make("two", ttl=SHORT):
            await first.aclose()
            await make.take_away()
            await asyncio.sleep(10)
