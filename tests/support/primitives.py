"""The conformance table's rows: every primitive, and how a test makes one. A new primitive is one more `Row`."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeVar, final

import pytest
from redis.asyncio import Redis

from aiolocks import Lease, Lock, RLock, RWLock, Semaphore, Statistics

T = TypeVar("T")

SHORT = 0.4
"""Seconds of a TTL that a busy machine renews in time and a test can wait for."""

BRIEF = 0.15
"""Seconds of a TTL that is meant to lapse. A busy machine may do so early, but the lease begins with half of it."""


class Acquirable(Protocol):
    """What every row offers."""

    @property
    def name(self) -> str: ...
    async def __aenter__(self) -> Lease: ...
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None: ...
    def hold(self, *, timeout: float | None = ...) -> AbstractAsyncContextManager[Lease]: ...
    async def acquire(self, *, timeout: float | None = ...) -> Lease: ...
    async def try_acquire(self) -> Lease | None: ...
    async def release(self) -> None: ...
    async def locked(self) -> bool: ...
    async def statistics(self) -> Statistics: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One primitive: what `make(client, name, **options)` returns, and how many leases fit into one name."""

    id: str
    make: Callable[..., Acquirable]
    places: int = 1
    reentrant: bool = False
    """Its holder may take it again."""
    limited: bool = True
    """Whether the statistics have a limit: the number of places."""
    filler: Callable[..., Acquirable] | None = None
    """What takes all places, where this does not exclude itself."""

    def __str__(self) -> str:
        return self.id


def reading(client: Redis, name: str, **options: Any) -> Acquirable:
    return RWLock(client, name, **options).read


def writing(client: Redis, name: str, **options: Any) -> Acquirable:
    return RWLock(client, name, **options).write


ROWS = (
    Row("lock", Lock),
    Row("rlock", RLock, reentrant=True),
    Row("semaphore", partial(Semaphore, limit=1)),
    Row("write lock", writing, limited=False),
    Row("semaphore of 3", partial(Semaphore, limit=3), places=3),
)

EVERY_ROW = (*ROWS, Row("read lock", reading, limited=False, filler=writing))
"""With those whose leases go together, and wait for others only."""

every_row = pytest.mark.parametrize("row", EVERY_ROW, ids=str, indirect=True)
"""For promises in which places matter; the others are asked of the rows with one place."""

not_reentrant = pytest.mark.parametrize("row", [row for row in ROWS if not row.reentrant], ids=str, indirect=True)
"""For what happens to a task that asks once more for what it has."""

one_place_not_reentrant = pytest.mark.parametrize(
    "row", [row for row in ROWS if not row.reentrant and row.places == 1], ids=str, indirect=True
)
"""The same, if it takes but one lease."""

limited_rows = pytest.mark.parametrize("row", ROWS, ids=str, indirect=True)
"""For promises that leases of one name exclude each other, in the end."""

exclusive_rows = pytest.mark.parametrize("row", [row for row in ROWS if row.places == 1], ids=str, indirect=True)
"""For promises that one lease excludes all others of its name."""


@final
class Make:
    """Makes the row's primitive around the test's client, and knows what the server must be asked besides."""

    def __init__(self, row: Row, client: Redis, flush: Callable[[], None] | None = None) -> None:
        self.client = client
        self._flush = flush
        self.places = row.places
        self.limit = row.places if row.limited else 0
        self._row = row

    def __call__(self, name: str = "orders", *, client: Redis | None = None, **options: Any) -> Acquirable:
        return self._row.make(client or self.client, name, **options)

    def beside(self, **options: Any) -> Acquirable:
        """Return another object of the same name, on another client of the same pool."""
        return self(client=Redis(connection_pool=self.client.connection_pool), **options)

    async def fill(self) -> list[Lease]:
        """Take all places, by hand; in a task that has nothing to do with this one, whose holds are its own."""
        filler = self._row.filler or self._row.make
        return [await as_a_stranger(filler(self.client, "orders").acquire()) for _ in range(self.places)]

    async def take_away(self) -> None:
        """Let the server forget every lease and waiter."""
        if self._flush is not None:
            self._flush()
        else:
            await self.client.flushdb()


def as_a_stranger(coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Run *coroutine* in a task that knows nothing of what this one holds."""
    return asyncio.create_task(coroutine, context=Context())


async def until(condition: Callable[[], Awaitable[bool]], within: float = 5.0) -> None:
    """Ask until *condition* is true.

    Raises:
        TimeoutError: It was not, for *within* seconds.
    """
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.005)


async def queued(acquirable: Acquirable, count: int) -> None:
    """Wait until *count* waiters are in the queue."""

    async def as_many() -> bool:
        return (await acquirable.statistics()).waiting == count

    await until(as_many)


async def free(acquirable: Acquirable) -> None:
    """Wait until nobody holds anything."""

    async def nobody() -> bool:
        return (await acquirable.statistics()).holders == 0

    await until(nobody)
