"""What a call costs does not grow with what else is held. Calls are counted, so a busy machine changes nothing."""

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lease, Lock, RLock, RWLock, Semaphore
from tests.support.primitives import as_a_stranger

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("quick_sessions")]

FEW, MANY = 100, 3_000


class Counted:
    """Awaits a coroutine, and returns how many functions it calls before it waits for the first time."""

    def __init__(self, coroutine: Coroutine[Any, Any, object]) -> None:
        self._coroutine = coroutine
        self._calls = 0

    def __await__(self) -> Generator[Any, Any, int]:
        try:
            sys.setprofile(self._note)
            try:
                asked = self._coroutine.send(None)
            finally:
                sys.setprofile(None)
            while True:
                asked = self._coroutine.send((yield asked))
        except StopIteration:
            return self._calls

    def _note(self, frame: object, event: str, argument: object) -> None:
        self._calls += event in ("call", "c_call")


async def hands_off(redis: Redis, others: int) -> float:
    lock = RWLock(redis, "orders").upgradeable
    leases = [await Lock(redis, f"other:{number}").acquire() for number in range(others)]
    lease = await lock.acquire()
    texts: list[str] = []

    async def hand_off() -> None:
        texts.append(await lease.hand_off())

    calls = await counted(hand_off())
    await (await lock.adopt(texts[0])).release()
    await asyncio.gather(*(lease.release() for lease in leases))
    return calls


async def releases_all_by_name_the_oldest_first(redis: Redis, others: int) -> float:
    """The first of them puts all in order by name, so this is for each of them."""
    locks = [Lock(redis, f"other:{number}") for number in range(others)]
    for lock in locks:
        await lock.acquire()
    return sum([await counted(lock.release()) for lock in locks]) / others


async def releases_a_dropped_one_by_name(redis: Redis, others: int) -> float:
    for number in range(others):
        await as_a_stranger(take(Lock(redis, f"other:{number}")))
    await as_a_stranger(take(Lock(redis, "orders")))
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    calls = await counted(Lock(redis, "orders").release())
    for number in range(others):
        await Lock(redis, f"other:{number}").release()
    return calls


async def enters_an_rlock_inside_others(redis: Redis, others: int) -> float:
    async with AsyncExitStack() as stack:
        for number in range(others):
            await stack.enter_async_context(RLock(redis, f"other:{number}"))
        lock = RLock(redis, "orders")
        first, again = await counted(stack.enter_async_context(lock)), await counted(stack.enter_async_context(lock))
        return first + again


async def starts_an_rlock_in_a_child(redis: Redis, others: int) -> float:
    async with AsyncExitStack() as stack:
        for number in range(others):
            await stack.enter_async_context(RLock(redis, f"other:{number}"))
        lock = RLock(redis, "orders")
        calls = await asyncio.create_task(counted(lock.acquire()))
        await asyncio.sleep(0)
        gc.collect()
        await lock.release()
        return calls


class Wrapper:
    """What many write around a lock."""

    def __init__(self, lock: Semaphore) -> None:
        self._lock: Any = lock

    async def __aenter__(self) -> Lease:
        lease: Lease = await self._lock.__aenter__()
        return lease

    async def __aexit__(self, *error: object) -> None:
        await self._lock.__aexit__(*error)


async def wrapped(lock: Semaphore) -> AsyncGenerator[Lease]:
    async with Wrapper(lock) as lease:
        yield lease


async def leaves_a_wrapped_block_beside_others(redis: Redis, others: int) -> float:
    lock, entered, calls = Semaphore(redis, "orders", 2 * MANY), list[int](), list[int]()
    ends = [asyncio.Event() for _ in range(others)]

    async def work(end: asyncio.Event) -> None:
        generator = wrapped(lock)
        await anext(generator)
        entered.append(1)
        await end.wait()
        calls.append(await counted(generator.aclose()))

    tasks = [asyncio.create_task(work(end)) for end in ends]
    while len(entered) < others:
        await asyncio.sleep(0.01)
    ends[others // 2].set()
    await tasks[others // 2]
    for end in ends:
        end.set()
    await asyncio.gather(*tasks)
    return calls[0]


async def take(lock: Lock) -> None:
    await lock.acquire()


async def counted(coroutine: Coroutine[Any, Any, object]) -> int:
    return await Counted(coroutine)


@pytest.mark.rest
@pytest.mark.parametrize("cost", [
    hands_off, leaves_a_wrapped_block_beside_others, releases_all_by_name_the_oldest_first,
    releases_a_dropped_one_by_name, enters_an_rlock_inside_others, starts_an_rlock_in_a_child,
])  # fmt: skip
async def test_a_call_costs_the_same_beside_any_number_of_leases(
    redis: Redis, cost: Callable[[Redis, int], Awaitable[float]]
) -> None:
    few, many = await cost(redis, FEW), await cost(redis, MANY)
    assert many <= 2 * few, (few, many)
