"""The conformance table's rows: every primitive, and how a test makes one. A new primitive is one more `Row`."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, final

import pytest
from redis.asyncio import Redis
from redis.asyncio.sentinel import SentinelConnectionPool

from aiolocks import HierarchicalLock, Lease, Lock, MultiLock, RateLimiter, Redlock, RLock, RWLock, Semaphore
from aiolocks._core.kinds import KINDS, Kind
from tests.support import inside, kinds
from tests.support.clients import CHOSEN
from tests.support.lateness import bounded
from tests.support.virtual import clock

T = TypeVar("T")

NO_SERVER = Redis(port=1)
"""A client of a port at which nothing listens."""

SHORT = 0.6
"""Seconds of a TTL that lapses, or is seen to be lost, within a second. A busy machine may fail to renew it."""

STEADY = 3.0
"""Seconds of a TTL that has to be renewed in time, also by a machine that stands still for a second."""

BRIEF = 0.2
"""Seconds of a TTL that is meant to lapse. A busy machine may do so early, but the lease begins with half of it."""

SOON = 0.3
"""Seconds of a timeout that is meant to run out. It includes connecting and being told that others are in the way."""

Acquirable = inside.Acquirable
"""What every row offers."""


@dataclass(frozen=True, slots=True)
class Row:
    """One primitive: what `make(client, name, **options)` returns, and how many leases fit into one name."""

    id: str
    kind_name: str
    """The name of its kind in the registry."""
    make: Callable[..., Acquirable]
    places: int = 1
    called: Callable[[str], str] = str
    """What its leases and errors say that is held, given the name."""
    connections: int = 2
    """Connections to the server while somebody waits; on a Cluster to that node which has most of them."""
    tag: str = "{orders}"
    """With what a key begins that its leases of "orders" guard on a Cluster too."""
    slots: int = 1
    """In how many slots of a Cluster its names are; if in several, no node can guard by all of them."""
    composed: bool = False
    """Whether its leases are made of those of others here."""
    round_trips: int = 1
    """How many it takes to be granted what is free."""
    limited: bool = True
    """Whether the statistics have a limit: the number of places."""
    filler: Callable[..., Acquirable] | None = None
    """What takes all places, where this does not exclude itself."""

    @property
    def kind(self) -> Kind:
        return _KINDS[self.kind_name]

    @property
    def queue(self) -> bool:
        """Whether waiters wait in line: not at several servers, whose lines could wait for each other."""
        return self.kind.queued

    @property
    def guards(self) -> bool:
        """Whether its leases guard commands: only if a single server knows of them."""
        return self.kind.guards

    @property
    def reentrant(self) -> bool:
        return self.kind.reentrant

    def __str__(self) -> str:
        return self.id


_KINDS = {kind.name: kind for kind in KINDS}


def reading(client: Redis, name: str, **options: Any) -> Acquirable:
    return RWLock(client, name, **options).read


def writing(client: Redis, name: str, **options: Any) -> Acquirable:
    return RWLock(client, name, **options).write


def several(client: Redis, name: str, **options: Any) -> MultiLock:
    return MultiLock(client, [*several_names(name), name], **options)


def several_names(name: Any) -> list[str]:
    """Return *name* and two more that go with it, not in order."""
    return [f"{name[:200]}, third", name, f"{name[:200]}, second"] if isinstance(name, str) else [name]


def all_names(name: Any) -> str:
    return ", ".join(sorted(several_names(name)))


MAY_NOT_SELECT = CHOSEN in ("acl", "cluster")
"""The documented rights are for one database, and a Cluster has one."""

SERVERS = 1 if MAY_NOT_SELECT else 3
"""How many a quorum is of."""

_others: "weakref.WeakKeyDictionary[Any, list[Redis]]" = weakref.WeakKeyDictionary()


def of_three_servers(client: Redis, name: str, **options: Any) -> Redlock:
    """Return a lock on three databases of one server, which for it are three servers."""
    pool = getattr(client, "connection_pool", None)
    if MAY_NOT_SELECT or not hasattr(pool, "connection_class"):
        return Redlock([client], name, **options)
    if pool not in _others:
        _others[pool] = [Redis(connection_pool=another_database(pool, db)) for db in (7, 8)]
    return Redlock([client, *_others[pool]], name, **options)


def another_database(pool: Any, db: int) -> Any:
    if isinstance(pool, SentinelConnectionPool):
        return pool.sentinel_manager.master_for(pool.service_name, db=db).connection_pool
    settings = {**pool.connection_kwargs, "db": db}
    return type(pool)(connection_class=pool.connection_class, **settings)


def row_of_a_table(client: Redis, name: str, **options: Any) -> Acquirable:
    try:
        Lock(client, name)
    except (TypeError, ValueError):
        return HierarchicalLock(client, name, **options).write  # must object
    return HierarchicalLock(client, row_path(name), **options).write


def row_path(name: str) -> str:
    """Return a path that ends with *name*, or what a path can have of it."""
    return f"shop/table/{name[:300].replace('/', '|')}"


ROWS = (
    Row("lock", "lock", Lock),
    Row("redlock", "redlock", of_three_servers, composed=True, connections=SERVERS, round_trips=2),
    Row("multilock", "multilock", several, slots=3, composed=True, called=all_names),
    Row("rlock", "rlock", RLock),
    Row("semaphore", "semaphore", partial(Semaphore, limit=1)),
    Row("write lock", "rwlock", writing, limited=False),
    Row(
        "row of a table", "hierarchy", row_of_a_table,
        limited=False, composed=True, round_trips=2, called=row_path, tag="{shop}",
    ),
    Row("semaphore of 3", "semaphore", partial(Semaphore, limit=3), places=3),
)  # fmt: skip

EVERY_ROW = (*ROWS, Row("read lock", "rwlock", reading, limited=False, filler=writing))
"""All rows, with one more, whose leases can be held at the same time and wait for others only."""

kinds.check({row.kind_name for row in EVERY_ROW}, kinds.kinds_where(), {})

WITH_ONE_PLACE = [row for row in EVERY_ROW if row.places == 1]


def rows_where(
    where: kinds.Where = kinds.leased, *, without: Mapping[str, str] | None = None, shared: bool = True
) -> dict[str, Row]:
    """Return the rows with one place whose kind can do what *where* asks, by their ids: a table of kinds.

    *without*: those that are left out all the same, each with the reason. *shared*: with the row whose leases share.
    """
    rows = {row.id: row for row in WITH_ONE_PLACE if where(row.kind) and (shared or row.filler is None)}
    left = {name: row for name, row in rows.items() if name not in (without or {})}
    kinds.check(left, rows, without or {})
    return left


def one_of_each_family(where: kinds.Where = kinds.leased) -> dict[str, Row]:
    """Return the first row of each family of scripts whose kind can do what *where* asks."""
    first: dict[str, Row] = {}
    for row in rows_where(where, shared=False).values():
        first.setdefault(row.kind.family, row)
    return {row.id: row for row in first.values()}


WITH_A_QUEUE = [row for row in ROWS if row.queue and row.places == 1]


def _each(rows: Iterable[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", list(rows), ids=str, indirect=True)


# A promise in which places matter is asked of every row that keeps it; the others, of the rows with one place.
each_with_a_queue = _each(WITH_A_QUEUE)
limited_rows_with_a_queue = _each(row for row in ROWS if row.queue)
every_row_with_a_queue = _each(row for row in EVERY_ROW if row.queue)
every_row = _each(EVERY_ROW)
limited_rows = _each(ROWS)
exclusive_rows = _each(row for row in ROWS if row.places == 1)
not_reentrant = _each(row for row in ROWS if not row.reentrant)
one_place_not_reentrant = _each(row for row in ROWS if not row.reentrant and row.places == 1)
handed_on_rows = _each(row for row in EVERY_ROW if row.kind.handed_on)
exclusive_handed_on_rows = _each(row for row in ROWS if row.kind.handed_on and row.places == 1)


@final
class Make:
    """Makes the row's primitive around the test's client, and knows what the server must be asked besides."""

    def __init__(self, row: Row, client: Redis, flush: Callable[[], None] | None = None) -> None:
        self.client = client
        self._flush = flush
        self.id = row.id
        self.places = row.places
        self.limit = row.places if row.limited else 0
        self.called = row.called
        self._row = row

    def __call__(self, name: str = "orders", *, client: Redis | None = None, **options: Any) -> Acquirable:
        return self._row.make(client or self.client, name, **options)

    def key(self, key: str) -> str:
        """Return a key that the leases of "orders" may guard: on a Cluster those in the slot of its name."""
        return f"{self._row.tag}:{key}"

    def beside(self, **options: Any) -> Acquirable:
        """Return another object of the same name, on another client of the same pool."""
        pool = getattr(self.client, "connection_pool", None)  # a Cluster's client has one for each node
        return self(client=self.client if pool is None else Redis(connection_pool=pool), **options)

    async def fill(self) -> list[Lease]:
        """Take all places, by hand; in a task that has nothing to do with this one, whose holds are its own."""
        filler = self._row.filler or self._row.make
        return [await as_a_stranger(filler(self.client, "orders").acquire()) for _ in range(self.places)]

    async def take_away(self) -> None:
        if self._flush is not None:
            self._flush()
        else:
            await self.client.flushall()


def as_a_stranger(coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Run *coroutine* in a task that knows nothing of what this one holds."""
    return asyncio.create_task(coroutine, context=Context())


async def enter(block: AbstractAsyncContextManager[object]) -> None:
    """Enter a block, and leave it at once."""
    async with block:
        pass


async def cancelled(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel *tasks*, wait until they have ended, and check that each was cancelled."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


async def reached(point: "asyncio.Future[T]", by: "asyncio.Task[Any]") -> T:
    """Return what a task tells when it has come so far; raise what ended it before."""
    await asyncio.wait([point, by], return_when=asyncio.FIRST_COMPLETED)
    if not point.done():
        await by
        raise AssertionError("it ended without a word")
    return point.result()


async def until(condition: Callable[[], Awaitable[object]], within: float = 15.0) -> None:
    began = clock()
    async with bounded(within):
        while not await condition():
            await asyncio.sleep(min(max(0.005, (clock() - began) / 16), 0.05))  # each look costs a script, or several


async def queued(acquirable: Acquirable | RateLimiter, count: int) -> None:
    async def as_many() -> bool:
        return (await acquirable.statistics()).waiting == count

    await until(as_many)


async def scripts_run(client: Redis) -> int:
    """Return how many scripts the server has run."""
    statistics = await client.info("commandstats")
    return sum(int(statistics.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha"))


async def free(acquirable: Acquirable) -> None:
    """Wait until there is no holder, and nothing is kept by `min_hold`."""

    async def nobody() -> bool:
        return (await acquirable.statistics()).permits == 0

    await until(nobody)
