"""A program that ends while async generators are suspended inside locks: `python -m … HOW LOOP URL`.

It must print nothing, and leave nothing held.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from typing import Any

from aiolocks import LockManager
from tests.faults.support.quiet import loop_factory

Generator = AsyncGenerator[int, None]
Shape = Callable[[LockManager, str], Generator]
SLOW = 0.1
"""Seconds that a clean-up takes."""


def inside(block: Callable[[LockManager, str], Any], cleanup: float = 0.0) -> Shape:
    """Return a generator function that is suspended inside a block, and may take its time when it is closed."""

    async def generator(locks: LockManager, name: str) -> Generator:
        async with block(locks, name):
            try:
                yield 0
                yield 1
            finally:
                if cleanup:
                    await asyncio.sleep(cleanup)

    return generator


def by_hand(cleanup: float = 0.0) -> Shape:
    async def generator(locks: LockManager, name: str) -> Generator:
        lease = await locks.lock(name).acquire()
        try:
            yield 0
            yield 1
        finally:
            if cleanup:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(cleanup)
            await lease.release()

    return generator


async def in_lease(locks: LockManager, name: str) -> Generator:
    async with await locks.semaphore(name, 1).acquire():
        yield 0
        yield 1


async def in_stack(locks: LockManager, name: str) -> Generator:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(locks.lock(name))
        yield 0
        yield 1


async def in_thread_watched(locks: LockManager, name: str) -> Generator:
    async with locks.lock(name, watchdog="thread"), locks.lock(name + " inner"):
        yield 0
        yield 1


SHAPES: list[Shape] = [
    inside(lambda locks, name: locks.lock(name)), inside(lambda locks, name: locks.lock(name).hold()), in_lease,
    in_stack, inside(lambda locks, name: locks.rwlock(name).write, SLOW), in_thread_watched, by_hand(),
    by_hand(SLOW / 2),
]  # fmt: skip

COUNT = 15

kept: list[object] = []


async def run(how: str, locks: LockManager) -> None:
    """Return from main while all generators are suspended; or tasks that are inside `async for`; or after `break`."""
    shapes = SHAPES[:-1] if how == "dropped" else SHAPES
    generators = [shapes[number % len(shapes)](locks, f"suspended {number}") for number in range(COUNT)]
    begun: list[Generator] = []

    async def consume(generator: Generator) -> None:
        async for _ in generator:
            begun.append(generator)
            await asyncio.sleep(60)

    match how:
        case "suspended":
            for generator in generators:
                await anext(generator)
            kept.extend(generators)
        case "dropped":
            for generator in generators:
                async for _ in generator:
                    break
        case _:
            kept.extend(asyncio.create_task(consume(generator)) for generator in generators)
            if how == "consumed_elsewhere":  # the generators outlive the tasks
                kept.append(list(generators))
            while len(begun) < COUNT:
                await asyncio.sleep(0.002)


WAYS = ["consumed", "consumed_elsewhere", "dropped", "suspended"]


async def main(how: str, url: str) -> None:
    async with LockManager.from_url(url, ttl=30) as locks:
        await run(how, locks)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory(sys.argv[2])) as runner:
        runner.run(main(sys.argv[1], sys.argv[3]))
