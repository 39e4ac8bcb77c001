"""One connection pool in one event loop: builds and ends everything that its leases and waiters share.

A session begins with the first request. It ends by itself half a second after the last lease and waiter are gone and
every undo was answered.
"""

import asyncio
import contextlib
import os
import weakref
from collections.abc import Awaitable, Callable, Container, Hashable, Iterable
from functools import partial
from typing import final

import anyio
from redis.exceptions import ConnectionError as RedisConnectionError

from .._core.background import LAST_GRACE, at_loop_end, finish, last_releases
from .._core.keys import Keys
from .._core.modes import EXCLUSIVE, INTENT_EXCLUSIVE, INTENT_SHARED, SHARED
from .._core.options import Duration
from .._core.values import Holder
from .._engine.context import Context, Grantor
from .._engine.lease_state import LeaseState, Renewer
from .._engine.renewal import ThreadWatchdog, Watchdog
from .._engine.request import Request
from .._redis.clients import Pool, server_of
from .._redis.cluster import Route, Router
from .._redis.pipeline import Pipeline
from .families import RenewalBatch, ScriptSet
from .hand_off import hand_off
from .one_server import RedisGrantor
from .replication import Replication
from .tracking import Tracking
from .wait_queue import WaitQueue
from .wakeups import ClusterWakeups, SessionAddress, Wakeups
from .who import SessionInfo, holders_of


@final
class Servers:
    """The servers of one session: its only one, or the nodes of its Cluster, each from the first question on.

    On a Cluster the node that owns a name notifies its waiters, so there is one subscriber per node with waiters. When
    a slot moves, its queues move to the new node. Invariant: a queue is in `queues` exactly while it has waiters.
    """

    def __init__(
        self, context: Context, leases: Callable[[], Iterable[Iterable[LeaseState]]],
        on_moved: Callable[[Container[int]], None],
    ) -> None:  # fmt: skip
        """*leases* is for `SessionInfo`. *on_moved* gets the slots that have moved to other nodes."""
        self._context = context
        self._on_moved = on_moved
        pipeline = context.pipeline
        self._router = pipeline if isinstance(pipeline, Router) else None
        self.only = None if isinstance(pipeline, Router) else pipeline
        """The way to the one server that has all names; None on a Cluster."""
        self.queues: dict[bytes, WaitQueue] = {}
        """By the key that all keys of the name begin with."""
        self.grantors: weakref.WeakValueDictionary[bytes, RedisGrantor] = weakref.WeakValueDictionary()
        """The grantors of names that had waiters: a message can arrive after the last waiter has left."""
        self.handing_over: set[bytes] = set()
        """Names for which the server was asked to continue to hand over."""
        self.info = SessionInfo(context, leases, self.queues, alone=self.only is not None)
        self._wakeups: dict[Pipeline, Wakeups] = {}
        self.addresses: dict[tuple[bytes, float], SessionAddress] = {}
        """Of the only server, by the prefix of channels and the TTL. Empty on a Cluster: each node has others."""
        self._replications: dict[Pipeline, Replication] = {}
        if isinstance(pipeline, Router):
            pipeline.on_changed = partial(self._changed, pipeline)
        else:
            self.wakeups_at(pipeline)

    @property
    def wakeups(self) -> tuple[Wakeups, ...]:
        return tuple(self._wakeups.values())

    def wakeups_at(self, route: Route) -> Wakeups:
        """Return the `Wakeups` of the server to which *route* leads."""
        pipeline = route.pipeline
        wakeups = self._wakeups.get(pipeline)
        if wakeups is None:
            router = self._router
            if router is None:
                wakeups = Wakeups(self._context, self, pipeline, self.addresses)
            else:
                wakeups = ClusterWakeups(self._context, self, pipeline, router)
            self._wakeups[pipeline] = wakeups
        return wakeups

    def replication_at(self, route: Route) -> Replication:
        """Return the `Replication` that waits for replicas of the server to which *route* leads."""
        pipeline, context = route.pipeline, self._context
        replication = self._replications.get(pipeline)
        if replication is None:
            replication = self._replications[pipeline] = Replication(pipeline.endpoint, context.loop, context.clock)
        return replication

    def link_lost(self) -> None:
        """Re-check, over a new link, the waiters at servers to which there is no link now."""
        for pipeline, wakeups in self._wakeups.items():
            if self.queues and pipeline.ready is None:  # defect: W6-link-lost
                self._context.loop.call_soon(wakeups.recheck_all)

    def disconnect(self) -> None:
        """Close all connections for wake-ups and replication."""
        self.info.stop()
        for wakeups in self._wakeups.values():
            wakeups.subscriber.close()
        for replication in self._replications.values():
            replication.pipeline.close()

    def detach_in_fork(self) -> None:
        """In a forked child: see `Connection.detach_in_fork`."""
        with contextlib.ExitStack() as each:  # all are called, even if one raises
            for wakeups in self._wakeups.values():
                each.callback(wakeups.subscriber.detach_in_fork)
            for replication in self._replications.values():
                each.callback(replication.pipeline.detach_in_fork)

    def _changed(self, router: Router) -> None:
        """I2, I3: follow slots that other nodes have now."""
        for queue in list(self.queues.values()):
            queue.follow()
        slots, router.changed = router.changed, set()
        self._on_moved(slots)  # defect: I3-moved


@final
class Session:
    """The `Services` of its context. Use `Session.of(pool)` instead of making one.

    The state is `context.closed`. Invariant: a session that is not closed is in `_sessions`, unless its loop is closed
    or it was copied by a fork.
    """

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
        self.pool = pool
        self.loop = loop
        self.context = context = Context(pool, loop, self)
        self.watchdog = Watchdog(loop, context.clock)
        self._thread_watchdog = ThreadWatchdog(loop, context.clock)
        self._watchdogs = self.watchdog, self._thread_watchdog
        self._tracking = Tracking(context, self._watchdog_of)
        self._unrenewed: list[LeaseState] = []
        """The leases without renewal that have not ended, and some that have."""
        self.servers = Servers(context, self._leases, self._moved)
        self._script_sets: dict[str, ScriptSet] = {}
        self._batches: dict[str, RenewalBatch] = {}
        self._at_exit = at_loop_end(self._loop_ends)
        self._imported = False
        self._import()

    @staticmethod
    def of(pool: Pool) -> "Session":
        """Return the session of *pool* in the running loop, and begin it if there is none."""
        loop = _loop_here()
        session = _sessions.get((id(pool), loop))
        if session is None:
            for key, other in list(_sessions.items()):
                if other.loop.is_closed() and _sessions.pop(key, None) is other:  # another thread may look as well
                    other._abandon()
            session = _sessions[id(pool), loop] = Session(pool, loop)
        return session

    @staticmethod
    def find(pool: Pool) -> "Session | None":
        """Return the session of *pool* in the running loop, if it has begun."""
        return _sessions.get((id(pool), _loop_here()))

    @staticmethod
    def at(server: Hashable) -> "list[Session]":
        """Return the sessions of all clients of *server*, in any loop that is not closed; see `server_of`."""
        known = list(_sessions.values())
        return [session for session in known if not session.loop.is_closed() and server_of(session.pool) == server]

    @staticmethod
    def begun(pool: Pool) -> bool:
        """Whether there is a session of *pool*, in any loop."""
        return any(known == id(pool) for known, _ in _sessions)

    def grantor(self, keys: Keys) -> RedisGrantor:
        scripts = self._script_sets.get(keys.family)
        if scripts is None:
            scripts = self._script_sets[keys.family] = ScriptSet(keys.family, self._batches)
        return RedisGrantor(self.context, keys, scripts, self.servers)

    def after_fork(self) -> None:
        """In a forked child: its copies of the leases are the parent's alone."""
        self.context.after_fork()
        with contextlib.ExitStack() as each:  # all are called, even if one raises
            each.callback(self.context.pipeline.detach_in_fork)
            each.callback(self.servers.detach_in_fork)
            each.callback(self._tracking.detach_in_fork)
            each.callback(self._thread_watchdog.detach_in_fork)

    def close(self) -> None:
        """End everything at once. Leases that are still held expire."""
        if _sessions.get((id(self.pool), self.loop)) is self:
            del _sessions[id(self.pool), self.loop]
        error = RedisConnectionError("the session has ended")
        self.context.end()
        for watchdog in self._watchdogs:
            watchdog.close()
        for queue in list(self.servers.queues.values()):
            queue.stop(error)
        self.context.undos.close(error)
        self._disconnect()
        finish(self._at_exit)

    # Services.

    def renewer_of(self, state: LeaseState) -> Renewer | None:
        if not state.options.renew:
            self._unrenewed.append(state)
        return self._tracking if state.options.track else self._watchdog_of(state)

    async def hand_off(self, state: LeaseState, ttl: Duration | None) -> str:
        return await hand_off(state, ttl)

    async def blockers(self, grantor: Grantor, request: Request) -> tuple[Holder, ...]:
        if isinstance(grantor, RedisGrantor):
            # Two intention locks on one level do not exclude each other.
            intends = grantor.keys.family == "modes" and request.terms.permits in (INTENT_SHARED, INTENT_EXCLUSIVE)
            return await holders_of(grantor, (SHARED, EXCLUSIVE) if intends else ())
        of_quorum: Callable[[float], Awaitable[tuple[Holder, ...]]] | None = getattr(grantor, "holders", None)
        if of_quorum is not None:
            return await of_quorum(request.terms.ttl)
        # Of several names, it holds those before the name that it waits for.
        missing = next((part for part in request.parts if not part.fence), None)
        return () if missing is None else await self.blockers(missing.grantor, missing.request)

    def noted(self, request: Request) -> None:
        self.servers.info.noted(request)

    def connected(self) -> None:
        if not self._imported:
            self._import()
        self.servers.info.connected()  # W23: ahead of all requests
        self.context.undos.retry_all_paused()  # W24: ahead of later requests for these names
        self._renew_all()

    def link_lost(self) -> None:
        self._renew_all()
        self.servers.link_lost()

    def idle(self) -> None:
        if self.context.holdings.in_use():  # blocks of lost leases, and losses, need the session but no connection
            self._thread_watchdog.close()
            self._disconnect()
        else:
            self.close()

    def _import(self) -> None:
        """Import what would take time from a lease later. If no file descriptor is left, the next link tries again."""
        with contextlib.suppress(OSError, RuntimeError):  # where no task runs, anyio may not find the loop
            "".encode("idna")  # asyncio looks up hosts with it; Python remembers a codec that it could not import
            anyio.CancelScope()  # equivalent: line dropped, for speed
            self._imported = True

    def _watchdog_of(self, state: LeaseState) -> Renewer | None:
        if not state.options.renew:
            return None
        return self.watchdog if state.options.renewed_in_loop else self._thread_watchdog

    def _leases(self) -> list[Iterable[LeaseState]]:
        """Return the leases of each watchdog, and those without renewal, from the newest on."""
        self._unrenewed = [state for state in self._unrenewed if state.on_server and not state.over]
        return [*(watchdog.leases() for watchdog in self._watchdogs), reversed(self._unrenewed)]

    def _renew_all(self, wanted: Callable[[LeaseState], bool] | None = None) -> None:
        for watchdog in self._watchdogs:
            watchdog.renew_all(wanted)

    def _moved(self, slots: Container[int]) -> None:
        """Renew the leases in *slots*, which other nodes of the Cluster have now."""
        self._renew_all(lambda state: _is_in(slots, state.grantor, state.request))
        self._tracking.follow()

    def _abandon(self) -> None:
        """Keep no task alive: the loop was closed before its tasks ended, and a primitive may refer to this session."""
        self.context.holdings.close()
        self.watchdog.close()
        self.servers.info.stop()

    def _disconnect(self) -> None:
        self.servers.disconnect()
        self._tracking.close()
        self.context.pipeline.close()

    async def _loop_ends(self) -> None:
        """End with the loop, after the last releases. Continue if only the loop's generators were closed."""
        context = self.context
        if context.closed:
            return
        await last_releases(
            lambda: bool(context.tokens) and not self._in_use(),
            lambda: context.undos.begun_since(context.clock() - LAST_GRACE),
        )
        if self._in_use():
            self._at_exit = at_loop_end(self._loop_ends)
        else:
            self.close()

    def _in_use(self) -> bool:
        """Whether a task waits, or holds a lease and still runs."""
        return bool(self.servers.queues) or self.context.holdings.running()


def _is_in(slots: Container[int], grantor: object, request: Request) -> bool:
    """Whether the name of *request*, or of one of its parts, is in one of these slots."""
    if isinstance(grantor, RedisGrantor):
        return grantor.is_in(slots)
    return any(_is_in(slots, part.grantor, part.request) for part in request.parts)


def _loop_here() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("aiolocks runs under asyncio only: no asyncio event loop is running here") from None


_sessions: dict[tuple[int, asyncio.AbstractEventLoop], Session] = {}


def _forked() -> None:
    with contextlib.ExitStack() as each:
        each.callback(_sessions.clear)  # the last to be called
        for session in _sessions.values():
            each.callback(session.after_fork)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
