"""What every primitive offers: `async with`, `hold`, `acquire`, `try_acquire`, `release`, `locked`, `statistics`.

A primitive is a description: a client, a name, options. All state of an acquisition is in its `Lease`, and which
lease a task took last, and which blocks are open, is known to the session behind the client. So any number of tasks
may share one object, and objects may be made and thrown away at will.
"""

import asyncio
from collections.abc import Coroutine, Hashable
from dataclasses import dataclass
from types import CoroutineType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import redis as redis_sync
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from ._blocks import Entry, ExitHandles, enter
from ._body import Body
from ._bound import Arguments
from ._grantor import RedisGrantor
from ._hold import Hold, obtain
from ._keys import Keys
from ._lease import Lease, as_coroutine
from ._lease_state import TAKEN, LeaseState
from ._ledger import Base
from ._options import UNSET, Duration, Options, Unset, check_timeout
from ._request import Grantor, Request
from ._session import Session

_TURNS = 3
"""Turns of the loop in which a lease that nobody refers to any more has become known as such."""


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
    _kept: dict[FrameType | None, list[Body]] | None = None
    """See `_blocks`."""
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

    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """Wait `acquire_timeout` for a lease, which the block holds; see `hold`."""
        return as_coroutine(self._enter(enter(self)))

    if TYPE_CHECKING:

        async def __aexit__(
            self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:
        __aexit__ = ExitHandles()

    def _enter(self, block: Entry) -> Coroutine[Any, Any, Lease]:
        state = self._asking(self._options.acquire_timeout, self._share, entering=True)
        return obtain(state, must=True, block=block)

    def _hold(self, timeout: Duration | Unset | None, permits: int) -> Hold:
        return self._hold_for(self._timeout(timeout), permits)

    def _hold_for(self, timeout: float | None, permits: int) -> Hold:
        return Hold(lambda: obtain(self._asking(timeout, permits, entering=True), must=True))

    async def _acquire(self, timeout: Duration | Unset | None, permits: int) -> Lease:
        # The task that runs this asks, which need not be the one that has called `acquire`.
        return await obtain(self._asking(self._timeout(timeout), permits, entering=True), must=True, by_hand=True)

    async def _try_acquire(self, permits: int) -> Lease | None:
        session = Session.of(self._pool)
        if self._would_wait_for_itself(session, asyncio.current_task()):
            return None
        return await obtain(self._asking(0.0, permits, entering=False), must=False, by_hand=True)

    async def release(self) -> None:
        """Release the newest lease of this name that the calling task took by hand, and has not released.

        If it has none: the newest one whose task has ended and whose `Lease` nobody refers to, such as that of
        ``await asyncio.wait_for(lock.acquire(), 5)`` before Python 3.12. Such a lease is not renewed any more.

        Raises:
            RuntimeError: There is none. A block releases its own lease, and `lease.release()` any.
            LeaseLostError: It was lost before. Of a lease that nobody refers to, that is remembered for another TTL.
            RedisError: Not confirmed; the lease ends with its TTL.

        After a cancellation the release goes on in the background.
        """
        session = Session.find(self._pool)
        state = None if session is None else session.ledger.newest(asyncio.current_task(), self._base)
        if state is None and session is not None:
            for _ in range(_TURNS):  # the loop itself keeps, until its next turn, the task that it called last
                state = session.ledger.newest_unreferenced(self._base)
                if state is not None:
                    break
                await asyncio.sleep(0)
        if state is None:
            raise RuntimeError(
                f"{self.kind} {self.name!r}: the calling task holds no lease to release that it took by hand"
            )
        if not await Lease(state).release():
            raise state.error(None if state.lost else TAKEN)

    async def statistics(self) -> Statistics:
        """Ask Redis how the name stands.

        Waiters of more than 500 processes are counted in parts, one after the other, while others come and go.

        Raises:
            RedisError: Redis could not be asked. Cancelling is harmless.
        """
        permits, holders, waiting, fence, limit, *_ = await self._standing()
        return Statistics(self.name, permits, holders, waiting, fence, limit)

    async def _standing(self, *, waiting: bool = True) -> list[Any]:
        return await cast("RedisGrantor", self._grantor()).statistics(waiting=waiting)

    async def _ask(self, verb: str, args: Arguments = (), *, as_waiter: bool = False) -> Any:
        return await cast("RedisGrantor", self._grantor()).ask(verb, args, as_waiter=as_waiter)

    def _asking(self, timeout: float | None, permits: int, *, entering: bool) -> LeaseState:
        grantor, options = self._grantor(), self._options
        session = grantor.session
        task = asyncio.current_task(session.loop)
        if entering and session.ledger.blocks and self._would_wait_for_itself(session, task):
            raise waits_for_itself(self.kind, self.name)
        wait = timeout is None or timeout > 0
        # By keywords, Python 3.11 takes a fifth of a microsecond longer.
        request = Request(options.ttl, permits, wait, session.new_token())
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

    def _timeout(self, timeout: Duration | Unset | None) -> float | None:
        return self._options.acquire_timeout if timeout is UNSET else check_timeout("timeout", timeout)


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
