"""Trouble that tests make on purpose: leases that are lost, and a Redis that cannot be reached.

Each lease and connection is touched in its own loop only, which for `aiolocks.sync` runs in another thread.
"""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError

from .._engine.lease import Lease, state_of
from .._engine.lease_state import LeaseState
from .._grantors.session import Session
from .._manager import LockManager
from .._primitives.reentry import Reentry
from .._redis.clients import Pool, in_memory, pool_of, server_of
from .._redis.pipeline import Pipeline

if TYPE_CHECKING:
    import aiolocks.sync

T = TypeVar("T")

_TAKEN_AWAY = "taken away by a test"

_ANSWER_TIMEOUT = 10.0
"""Timeout in seconds for a loop that runs in another thread."""

_outages: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
"""The number of open outages of each in-memory server."""

_changing = threading.Lock()


def lose(lease: "aiolocks.Lease | aiolocks.sync.Lease", reason: str = _TAKEN_AWAY) -> None:
    """Lose *lease* at once, as if its key had been deleted: its body is cancelled, and the name is free.

    For tests of how a program reacts, on any server. A lease of `aiolocks.sync` has no body that can be cancelled. All
    holds of an `RLock` are lost with one of them.
    """
    state = state_of(_inner(lease, Lease, "lease"))
    _run_in(state.context.loop, partial(_lose, state, reason))


def lose_name(locks: "aiolocks.LockManager | aiolocks.sync.LockManager", name: str, reason: str = _TAKEN_AWAY) -> None:
    """Lose every lease of *name*, as `lose` does. For tests that cannot reach the `Lease` object.

    ::

        async def test_a_payment_stops_when_its_lock_is_lost(locks):
            paying = asyncio.create_task(pay(locks, 42))
            ...
            lose_name(locks, "orders:42")
            with pytest.raises(LeaseLostError):
                await paying

    Every lease of that name in this process on the server of *locks* is lost, whatever its kind, manager, task or
    prefix. That includes all permits of a semaphore, and a `MultiLock` with that name among others. Waiters lose
    nothing; the first of them gets the name. It works on any server.

    Args:
        locks: A `LockManager`, also of `aiolocks.sync`.
        name: The name as the program gave it; of a `HierarchicalLock`, the path.
        reason: Why it is lost, for `LeaseLostError.reason`.

    Raises:
        RuntimeError: This process holds no lease of that name.
        TypeError: *locks* is no manager.
    """
    contexts = {session.context for session in Session.at(server_of(_pool(locks)))}
    # There is no list of all leases, because each lease would pay for it. The garbage collector knows them. A name that
    # a MultiLock already has, while it waits for others, has no base: it is no lease yet.
    states = [found for found in gc.get_objects() if issubclass(type(found), LeaseState)]
    held = [state for state in states if state.context in contexts and state.base and state.validity.held]
    found = [
        state
        for state in held
        if name in (state.grantor.name, *state.grantor.fencing_tokens(state.request, state.fence))
    ]
    if not found:
        others = ", ".join(sorted({repr(state.grantor.name) for state in held})) or "none at all"
        raise RuntimeError(f"this process holds no lease of {name!r}; what it holds there: {others}")
    for state in found:
        _run_in(state.context.loop, partial(_lose, state, reason))


@contextmanager
def outage(locks: "aiolocks.LockManager | aiolocks.sync.LockManager") -> Generator[None, None, None]:
    """Cut off the in-memory server of *locks* while the block lasts: every call raises redis-py's ConnectionError.

    ::

        async def test_a_payment_survives_a_short_outage(locks, clock):
            paying = asyncio.create_task(pay(locks, 42))
            with outage(locks):
                await clock.advance(5)
            await clock.advance(60)
            assert await paying == "paid"

    Connections break, calls under way fail, and new connections are refused. The server keeps its data, and its keys
    expire as usual. Leases, waiters and callers do the same as when a real Redis cannot be reached. A holder works on
    until its deadline. A waiter waits on for up to its `ttl`, or until its `timeout`. `lease.guard` asks again until
    its lease ends, for 10 s at most. Other calls raise at once, as a client of ``memory://`` does not retry. When the
    block ends, in whatever way, all of them go on.

    All managers and clients of one ``memory://NAME`` are cut off together. Outages may overlap; the server returns when
    the last one ends. A command of your own that blocks already, such as BLPOP, goes on.

    Args:
        locks: A ``LockManager.from_url("memory://")``, also of `aiolocks.sync`.

    Raises:
        TypeError: Not a manager on an in-memory server.
    """
    pool = _pool(locks)
    server: Any = pool.connection_kwargs.get("server") if in_memory(pool) else None
    if server is None:
        raise TypeError(
            'locks must be a LockManager.from_url("memory://"); a FaultProxy of aiolocks.testing cuts off a real server'
        )
    _count(server, 1)
    try:
        for session in Session.at(server_of(pool)):
            _run_in(session.loop, partial(_cut, session))
        yield
    finally:
        _count(server, -1)


def _inner(given: object, kind: type[T], called: str) -> T:
    """Return *given*, or the asynchronous object behind one of `aiolocks.sync`."""
    found = given if isinstance(given, kind) else getattr(given, "_inner", None)
    if not isinstance(found, kind):
        raise TypeError(f"{called} must be a {kind.__name__} of aiolocks or aiolocks.sync, not {given!r}")
    return found


def _pool(locks: object) -> Pool:
    return pool_of(_inner(locks, LockManager, "locks").client)


def _lose(state: LeaseState, reason: str) -> None:
    state.lose(reason)
    state.release_on_server(state.context.clock())
    if isinstance(state, Reentry):
        _lose(state.shared.core, reason)


def _count(server: Any, more: int) -> None:
    with _changing:
        left = _outages[server] = _outages.get(server, 0) + more
        server.connected = not left


def _cut(session: Session) -> None:
    """Break the connections, as the end of a server does. The in-memory server would only refuse the next command."""
    pipeline = session.context.pipeline
    if isinstance(pipeline, Pipeline) and pipeline.ready is not None:
        pipeline.ready.close(RedisConnectionError("Connection closed by server."))
    for wakeups in session.servers.wakeups:
        wakeups.subscriber.reconnect()


def _run_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Do *call* in *loop*, and wait for that if it runs in another thread."""
    if not _runs_elsewhere(loop):
        call()
        return
    done = Future[None]()

    def report() -> None:
        try:
            done.set_result(call())  # type: ignore[func-returns-value]
        except Exception as error:
            done.set_exception(error)

    loop.call_soon_threadsafe(report)
    done.result(_ANSWER_TIMEOUT)


def _runs_elsewhere(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return loop.is_running() and asyncio.get_running_loop() is not loop
    except RuntimeError:
        return True
