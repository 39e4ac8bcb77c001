"""Rows of asyncio's own locks in the conformance table: for the promises that they keep as ours do.

They show that the table tests locks in general, and not aiolocks: if asyncio behaves otherwise, it is no such promise.
"""

import asyncio
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, final

import pytest
from redis.asyncio import Redis

from aiolocks import Statistics
from tests.support.primitives import Row


@final
class Held:
    """A place that a task has: it stands for a lease."""

    def __init__(self, of: "OfAsyncio") -> None:
        self._of = of
        self.name = of.name
        self.fencing_token = of.newest
        self.token = str(of.newest)
        self.held = True

    async def release(self) -> bool:
        held, self.held = self.held, False
        if held:
            self._of.holders -= 1
            self._of.made.release()
        return held


@final
class OfAsyncio:
    """A lock or semaphore of asyncio, of one name in one loop, with the blocks of each task that has entered it."""

    def __init__(self, name: str, made: "asyncio.Lock | asyncio.Semaphore", places: int) -> None:
        self.name = name
        self.made = made
        self.holders = self.waiting = self.newest = 0
        self._places = places
        self._blocks: dict[Any, list[Held]] = {}

    async def acquire(self, *, timeout: float | None = None) -> Held:
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout):
                await self.made.acquire()
        finally:
            self.waiting -= 1
        self.holders += 1
        self.newest += 1
        return Held(self)

    async def try_acquire(self) -> Held | None:
        return None if self.made.locked() else await self.acquire()

    async def __aenter__(self) -> Held:
        held = await self.acquire()
        self._blocks.setdefault(asyncio.current_task(), []).append(held)
        return held

    async def __aexit__(self, *_: object) -> None:
        await self._blocks[asyncio.current_task()].pop().release()

    async def locked(self) -> bool:
        return self.made.locked()

    async def statistics(self) -> Statistics:
        return Statistics(self.name, self.holders, self.holders, self.waiting, self.newest, self._places)


_made: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Any, str], OfAsyncio]]"
_made = weakref.WeakKeyDictionary()


def of_asyncio(make: "Callable[[], asyncio.Lock | asyncio.Semaphore]", places: int, client: Redis, name: str) -> Any:
    """Return the object for *name*: one in each loop, as all of ours have one lock on the server."""
    names = _made.setdefault(asyncio.get_running_loop(), {})
    if (make, name) not in names:
        names[make, name] = OfAsyncio(name, make(), places)
    return names[make, name]


OF_ASYNCIO = (
    Row("asyncio.Lock", "lock", partial(of_asyncio, asyncio.Lock, 1)),
    Row("asyncio.Semaphore", "semaphore", partial(of_asyncio, asyncio.Semaphore, 1)),
    Row("asyncio.Semaphore of 3", "semaphore", partial(of_asyncio, partial(asyncio.Semaphore, 3), 3), places=3),
)


def and_of_asyncio(rows: Iterable[Row]) -> pytest.MarkDecorator:
    """Test a promise with *rows*, and with asyncio's own locks that have no more places than these rows."""
    rows = list(rows)
    most = max(row.places for row in rows)
    every = [*rows, *(row for row in OF_ASYNCIO if row.places <= most)]
    return pytest.mark.parametrize("row", every, ids=str, indirect=True)
