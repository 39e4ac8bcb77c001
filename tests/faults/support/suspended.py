"""A program that ends while async generators are suspended inside locks: `python -m … HOW LOOP COUNT URL`.

It must print nothing, and leave nothing held.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

from aiolocks import LockManager
from tests.faults.support.quiet import loop_factory

Generator = AsyncGenerator[int, None]


async def in_block(locks: LockManager, name: str) -> Generator:
    async with locks.lock(name):
        yield 0
        yield 1


async def in_hold(locks: LockManager, name: str) -> Generator:
    async with locks.lock(name).hold():
        yield 0
        yield 1


async def in_lease(locks: LockManager, name: str) -> Generator:
    lease = await locks.semaphore(name, 1).acquire()
    async with lease:
        yield 0
        yield 1


async def in_stack(locks: LockManager, name: str) -> Generator:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(locks.lock(name))
        yield 0
        yield 1


async def with_slow_cleanup(locks: LockManager, name: str) -> Generator:
    async with locks.rwlock(name).write:
        try:
            yield 0
            yield 1
        finally:
            await asyncio.sleep(0.1)


async def by_hand(locks: LockManager, name: str) -> Generator:
    lease = await locks.lock(name).acquire()
    try:
        yield 0
        yield 1
    finally:
        await lease.release()


async def by_hand_later(locks: LockManager, name: str) -> Generator:
    lease = await locks.lock(name).acquire()
    try:
        yield 0
        yield 1
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
        await lease.release()


async def in_thread_watched(locks: LockManager, name: str) -> Generator:
    async with locks.lock(name, watchdog="thread"), locks.lock(name + " inner"):
        yield 0
        yield 1


SHAPES = [in_block, in_hold, in_lease, in_stack, with_slow_cleanup, in_thread_watched, by_hand, by_hand_later]

kept: list[object] = []


Shape = Callable[[LockManager, str], Generator]


def generators(locks: LockManager, count: int, shapes: Sequence[Shape] = SHAPES) -> list[Generator]:
    return [shapes[number % len(shapes)](locks, f"suspended {number}") for number in range(count)]


async def suspended(locks: LockManager, count: int) -> None:
    """Return from main with all of them suspended."""
    for generator in generators(locks, count):
        await anext(generator)
        kept.append(generator)


async def consumed(locks: LockManager, count: int) -> None:
    """Return from main while tasks are inside `async for`, and are cancelled there."""

    async def consume(generator: Generator) -> None:
        async for _ in generator:
            begun.append(generator)
            await asyncio.sleep(60)

    begun: list[Generator] = []
    kept.extend(asyncio.create_task(consume(generator)) for generator in generators(locks, count))
    while len(begun) < count:
        await asyncio.sleep(0.002)


async def consumed_elsewhere(locks: LockManager, count: int) -> None:
    """The same, but the generators outlive the tasks."""
    kept.append(every := generators(locks, count))

    async def consume(generator: Generator) -> None:
        async for _ in generator:
            begun.append(generator)
            await asyncio.sleep(60)

    begun: list[Generator] = []
    kept.extend(asyncio.create_task(consume(generator)) for generator in every)
    while len(begun) < count:
        await asyncio.sleep(0.002)


async def dropped(locks: LockManager, count: int) -> None:
    """Leave each loop by `break`, right before main returns."""
    for generator in generators(locks, count, SHAPES[:-1]):
        async for _ in generator:
            break
    del generator


WAYS: dict[str, Callable[[LockManager, int], Coroutine[Any, Any, None]]] = {
    "consumed": consumed,
    "consumed_elsewhere": consumed_elsewhere,
    "dropped": dropped,
    "suspended": suspended,
}


def run(how: str, loop: str, count: str, url: str) -> None:
    async def main() -> None:
        async with LockManager.from_url(url, ttl=30) as locks:
            await WAYS[how](locks, int(count))

    with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
        runner.run(main())


if __name__ == "__main__":
    run(*sys.argv[1:])
