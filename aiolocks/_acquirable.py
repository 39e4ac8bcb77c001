"""What every primitive offers: `async with`, `hold`, `acquire`, `try_acquire`, `release`, `locked`, `statistics`.

A primitive is a description: a client, a name, options. All state of an acquisition is in its `Lease`, and which
lease a task took last, and which blocks are open, is known to the session behind the client. So any number of tasks
may share one object, and objects may be made and thrown away at will.
"""

import asyncio
import sys
from collections.abc import Coroutine, Hashable
from dataclasses import dataclass
from types import CoroutineType, TracebackType
from typing import Any, ClassVar, cast

import redis as redis_sync
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from ._bound import Arguments
from ._grantor import RedisGrantor
from ._hold import Hold, obtain
from ._keys import Keys
from ._lease import Lease, as_coroutine, state_of
from ._lease_state import TAKEN, LeaseState
from ._ledger import Base, Place, open_blocks, place
from ._options import UNSET, Options, Unset, check_timeout
from ._request import Grantor, Request
from ._session import Session, no_loop_runs


@dataclass(frozen=True, slots=True)
class Statistics:
    """How a name stood when Redis was asked.

    Attributes:
        name: What was asked about.
        permits: Permits in use; of a lock, 1 while it is held; where many read, as many as `holders`.
        holders: Leases held.
        waiting: Waiters in the queue.
        fencing_token: The newest fencing token; 0 when none was given for a day.
        limit: How many permits may be in use; of a lock, 1; 0 where there is no limit.
    """

    name: str
    permits: int
    holders: int
    waiting: int
    fencing_token: int
    limit: int


class Acquirable:
    """The base of the primitives; not for use by itself."""

    kind: ClassVar[str]
    family: ClassVar[str] = ""
    """Whose scripts these are, if not its own."""
    _share = 1
    """What a block asks for without further words: one permit, or a mode."""

    def __init__(self, client: Redis, name: str, prefix: str, options: Options) -> None:
        self._pool = pool_of(client)
        self._keys = Keys(prefix, self.kind, name, self.family)
        self._base: Base = self._keys.base
        self._options = options
        self._newest_grantor: RedisGrantor | None = None

    @property
    def name(self) -> str:
        """What it stands for, as given."""
        return self._keys.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # Plain functions, for the frame that calls them names the block; typed as what `async def` would return.
    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """Wait `acquire_timeout` for a lease, which the block holds; see `hold`."""
        return as_coroutine(self._enter(place(self, sys._getframe(1))))

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> "CoroutineType[Any, Any, None]":
        frame = sys._getframe(1)
        block = open_blocks.close(self, frame)
        if isinstance(exc, GeneratorExit) and no_loop_runs():
            return as_coroutine(_nothing())  # destroyed after its loop: nothing can be sent any more
        if block is None:
            raise RuntimeError(f"{self!r} is not held by a block that could be left here")
        return as_coroutine(block.leave(exc_type, exc, traceback, frame))

    def _enter(self, block: Place) -> Coroutine[Any, Any, Lease]:
        state = self._asking(self._options.acquire_timeout, self._share, entering=True)
        return obtain(state, must=True, block=block)

    def _hold(self, timeout: float | Unset | None, permits: int) -> Hold:
        seconds = self._timeout(timeout)
        return Hold(lambda: obtain(self._asking(seconds, permits, entering=True), must=True))

    def _acquire(self, timeout: float | Unset | None, permits: int) -> Coroutine[Any, Any, Lease]:
        state = self._asking(self._timeout(timeout), permits, entering=True)
        return obtain(state, must=True)

    async def _try_acquire(self, permits: int) -> Lease | None:
        session = Session.of(self._pool)
        if self._would_wait_for_itself(session, asyncio.current_task()):
            return None
        return await obtain(self._asking(0.0, permits, entering=False), must=False)

    async def release(self) -> None:
        """Release the newest lease of this name that the calling task took.

        Raises:
            RuntimeError: The task has taken none, or has released them all.
            LeaseLostError: It was lost before.
            RedisError: Not confirmed; the lease ends with its TTL.

        After a cancellation the release goes on in the background.
        """
        session = Session.find(self._pool)
        lease = session.ledger.newest(asyncio.current_task(), self._base) if session is not None else None
        if lease is None:
            raise RuntimeError(f"{self.kind} {self.name!r}: the calling task holds no lease to release")
        if not await lease.release():
            raise state_of(lease).error(None if lease.lost else TAKEN)

    async def statistics(self) -> Statistics:
        """Ask Redis how the name stands.

        Raises:
            RedisError: Redis could not be asked. Cancelling is harmless.
        """
        permits, holders, waiting, fence, limit, *_ = await self._ask("statistics")
        return Statistics(self.name, permits, holders, waiting, fence, limit)

    async def _ask(self, verb: str, args: Arguments = (), *, as_waiter: bool = False) -> Any:
        return await cast("RedisGrantor", self._grantor()).ask(verb, args, as_waiter=as_waiter)

    def _asking(self, timeout: float | None, permits: int, *, entering: bool) -> LeaseState:
        grantor, options = self._grantor(), self._options
        session = grantor.session
        task = asyncio.current_task(session.loop)
        if entering and self._would_wait_for_itself(session, task):
            raise waits_for_itself(self.kind, self.name)
        request = Request(options.ttl, permits, wait=timeout is None or timeout > 0, token=session.new_token())
        self._prepare(session, task, request)
        return LeaseState(session, grantor, self._base, request, options, timeout, task)

    def _grantor(self) -> Grantor:
        """Return whom to ask in the running loop; kept for the next time, as making it costs as much as asking."""
        grantor = self._newest_grantor
        if grantor is None or not grantor.session.runs():
            grantor = self._newest_grantor = Session.of(self._pool).grantor(self._keys)
        return grantor

    def _prepare(self, session: Session, task: "asyncio.Task[Any] | None", request: Request) -> None:
        """Add what the primitive's script takes beyond the usual."""

    def _would_wait_for_itself(self, session: Session, task: "asyncio.Task[Any] | None") -> bool:
        return session.ledger.inside(task, self._base) > 0

    def _timeout(self, timeout: float | Unset | None) -> float | None:
        if timeout is UNSET:
            return self._options.acquire_timeout
        check_timeout("timeout", timeout)
        return timeout


async def _nothing() -> None:
    pass


def waits_for_itself(kind: str, name: str) -> RuntimeError:
    instead = {"lock": "; an RLock may be taken again", "rwlock": "; pass its lease on, or begin with `upgradeable`"}
    return RuntimeError(
        f"{kind} {name!r}: this task is inside a block that holds it, and would wait for itself{instead.get(kind, '')}"
    )


def server_of(pool: Any) -> Hashable:
    """Return what names the server behind *pool*, however many pools there are for it."""
    options = pool.connection_kwargs
    address = tuple(options.get(key) for key in ("host", "port", "path", "db"))
    return (*address, getattr(pool, "service_name", None), id(options.get("server")))


def place_of(pool: Any) -> str:
    """Return the address of the server behind *pool*, without what it keeps secret."""
    options = pool.connection_kwargs
    place = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return f"{place}/{options['db']}" if options.get("db") else str(place)


def pool_of(client: Redis) -> Any:
    """Return the connection pool of *client*, or raise the TypeError that says what to pass instead."""
    given: object = client
    if isinstance(given, redis_sync.Redis):
        raise TypeError("aiolocks needs an asynchronous client: from redis.asyncio import Redis, not from redis")
    if isinstance(given, type) and issubclass(given, (Redis, redis_sync.Redis)):
        raise TypeError("aiolocks needs a client, such as redis.asyncio.Redis(), not the class")
    if isinstance(given, str) and "://" in given:
        raise TypeError("aiolocks needs a redis.asyncio.Redis client, not a URL: see LockManager.from_url")
    if isinstance(given, str) or (isinstance(given, (list, tuple)) and str in map(type, given)):
        raise TypeError(f"the redis.asyncio.Redis client goes first, then the name: not a {type(given).__name__} first")
    if isinstance(given, (list, tuple)):
        raise TypeError(f"one client is needed, not a {type(given).__name__}: only a Redlock has several")
    if isinstance(getattr(given, "client", None), Redis):
        raise TypeError(
            f"aiolocks needs a redis.asyncio.Redis client, not a {type(given).__name__}, which makes locks itself: "
            'manager.lock("orders:42")'
        )
    if not isinstance(given, Redis) or isinstance(given, Pipeline):
        raise TypeError(f"aiolocks needs a redis.asyncio.Redis client, not {type(given).__name__}")
    return given.connection_pool


__all__ = ["UNSET", "Acquirable", "Statistics", "Unset", "pool_of"]
