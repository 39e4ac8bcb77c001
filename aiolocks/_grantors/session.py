"""One connection pool in one event loop: builds and ends everything that its leases and waiters share.

It begins with the first request and ends by itself half a second after the last lease and waiter are gone, and what
undoes them is answered.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Container
from typing import Any, final

import anyio
from redis.exceptions import ConnectionError as RedisConnectionError

from .._core.background import LAST_GRACE, at_loop_end, finish, last_releases
from .._core.keys import Keys
from .._engine.context import Context
from .._engine.lease_state import LeaseState, Renewer
from .._engine.renewal import ThreadWatchdog, Watchdog
from .._engine.request import Request
from .._redis.router import Router
from .families import Family, Together
from .hand_off import hand_off
from .introduction import Introduction
from .one_server import RedisGrantor
from .servers import ClusterNodes, OneServer
from .tracking import Tracking


@final
class Session:
    """See the module. Make none yourself: `Session.of(pool)`."""

    def __init__(self, pool: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.pool = pool
        self.loop = loop
        self.context = context = Context(
            pool,
            loop,
            on_link_lost=self._link_lost,
            on_connected=self._connected,
            on_idle=self._idle,
            renewer_of=self._renewer_of,
        )
        self.watchdog = context.renewer = Watchdog(loop, context.clock)
        context.hand_off = hand_off
        self._thread_watchdog: ThreadWatchdog | None = None
        self._tracking: Tracking | None = None
        pipeline = context.pipeline
        self.servers = (
            ClusterNodes(context, pipeline, self._moved)
            if isinstance(pipeline, Router)
            else OneServer(context, pipeline)
        )
        self.introduction = context.introduction = Introduction(
            context, self._renewed, self.servers.queues, alone=self.servers.alone
        )
        self._families: dict[str, Family] = {}
        self._together: dict[str, Together] = {}
        self._at_exit = at_loop_end(self._loop_ends)
        self._imported = False
        self._import()

    @staticmethod
    def of(pool: Any) -> "Session":
        """Return the session of *pool* in the running loop, begun if need be.

        Raises:
            RuntimeError: No asyncio loop is running here.
        """
        global _newest
        loop, newest = _loop_here(), _newest
        if (
            newest is not None and newest.pool is pool and newest.loop is loop
        ):  # of most, and cheaper than to look it up
            return newest
        session = _sessions.get((id(pool), loop))
        if session is None:
            for key, other in list(_sessions.items()):
                if other.loop.is_closed() and _sessions.pop(key, None) is other:  # another thread may look as well
                    other._abandon()
            session = _sessions[id(pool), loop] = Session(pool, loop)
        _newest = session
        return session

    @staticmethod
    def find(pool: Any) -> "Session | None":
        """Return the session of *pool* in the running loop, if it has begun.

        Raises:
            RuntimeError: No asyncio loop is running here.
        """
        return _sessions.get((id(pool), _loop_here()))

    @staticmethod
    def begun(pool: Any) -> bool:
        """Whether there is a session of *pool*, in any loop."""
        return any(known == id(pool) for known, _ in _sessions)

    def grantor(self, keys: Keys) -> RedisGrantor:
        """Return who decides over a name."""
        family = self._families.get(keys.family)
        if family is None:
            family = self._families[keys.family] = Family(keys.family, self._together)
        return RedisGrantor(self.context, keys, family, self.servers)

    def after_fork(self) -> None:
        """In a forked child: its copies of the leases are the parent's alone."""
        self.context.after_fork()
        with contextlib.ExitStack() as each:  # all are called, even if one raises
            each.callback(self.context.pipeline.detach_in_fork)
            for listening in self.servers.listenings:
                each.callback(listening.subscriber.detach_in_fork)
            for replication in self.servers.replications:
                each.callback(replication.pipeline.detach_in_fork)
            if self._tracking is not None:
                each.callback(self._tracking.detach_in_fork)
            if self._thread_watchdog is not None:
                each.callback(self._thread_watchdog.detach_in_fork)

    def close(self) -> None:
        """End everything at once. Leases that are still held run out."""
        global _newest
        if _newest is self:
            _newest = None
        if _sessions.get((id(self.pool), self.loop)) is self:
            del _sessions[id(self.pool), self.loop]
        error = RedisConnectionError("the session has ended")
        self.context.end()
        self.watchdog.close()
        self._end_thread()
        for queue in list(self.servers.queues.values()):
            queue.stop(error)
        self.context.undos.close(error)
        self.context.cancel_tasks()
        self._disconnect()
        finish(self._at_exit)

    def _import(self) -> None:
        """Import now what would be imported at first use, where it would take time from a running lease.

        If no file descriptor is left, this is tried again with the next link. Without a link nothing is granted.
        """
        with contextlib.suppress(OSError):
            "".encode("idna")  # asyncio looks up hosts with it; Python remembers a codec that it could not import
            anyio.CancelScope()  # equivalent: line dropped, for speed
            self._imported = True

    def _renewer_of(self, state: LeaseState) -> Renewer | None:
        if not state.options.track:
            return self._watchdog_of(state)
        if self._tracking is None:
            self._tracking = Tracking(self.context, self._watchdog_of)
        return self._tracking

    def _watchdog_of(self, state: LeaseState) -> Renewer | None:
        if not state.options.renew:
            return None
        return self.watchdog if state.options.renewed_in_loop else self._thread_renewer()

    def _thread_renewer(self) -> ThreadWatchdog:
        if self._thread_watchdog is None:
            self._thread_watchdog = ThreadWatchdog(self.loop, self.context.clock)
        return self._thread_watchdog

    def _idle(self) -> None:
        """Nothing has been held or awaited for a while."""
        if self.context.holdings.in_use():  # by open blocks of lost leases, or by losses: keep these, but no connection
            self._end_thread()
            self._disconnect()
        else:
            self.close()

    def _abandon(self) -> None:
        """Keep no task alive: the loop was closed under them, and a primitive may remember this session for long."""
        self.context.holdings.close()
        self.watchdog.close()
        self.introduction.stop()

    def _end_thread(self) -> None:
        if self._thread_watchdog is not None:
            self._thread_watchdog.close()

    def _renewed(self) -> list[LeaseState]:
        by_thread = [] if self._thread_watchdog is None else self._thread_watchdog.renewed
        return [*self.watchdog.renewed, *by_thread]

    def _disconnect(self) -> None:
        self.introduction.stop()
        for listening in self.servers.listenings:
            listening.subscriber.close()
        for replication in self.servers.replications:
            replication.pipeline.close()
        if self._tracking is not None:
            self._tracking.close()
        self.context.pipeline.close()

    async def _loop_ends(self) -> None:
        """End with the loop, once what can be released is; or go on if only its generators were closed."""
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
        return bool(self.servers.queues) or self.context.holdings.running()

    def _renew_all(self, wanted: Callable[[LeaseState], bool] | None = None) -> None:
        self.watchdog.renew_all(wanted)
        if self._thread_watchdog is not None:
            self._thread_watchdog.renew_all(wanted)

    def _moved(self, slots: Container[int]) -> None:
        self._renew_all(lambda state: _is_in(slots, state.grantor, state.request))
        if self._tracking is not None:
            self._tracking.follow()

    def _link_lost(self) -> None:
        self._renew_all()
        self.servers.link_lost()

    def _connected(self) -> None:
        if not self._imported:
            self._import()
        self.introduction.connected()
        self.context.undos.go_first()
        self._renew_all()


def _is_in(slots: Container[int], grantor: Any, request: Request) -> bool:
    """Whether what was asked for, or a part of it, is in one of these slots."""
    if isinstance(grantor, RedisGrantor):
        return grantor.is_in(slots)
    return any(_is_in(slots, part.grantor, part.request) for part in request.parts)


def _loop_here() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError("aiolocks runs under asyncio only: no asyncio event loop is running here") from None


_sessions: dict[tuple[int, asyncio.AbstractEventLoop], Session] = {}

_newest: Session | None = None
"""The one that was asked for last, of any thread."""


def _forked() -> None:
    global _newest
    _newest = None
    with contextlib.ExitStack() as each:
        each.callback(_sessions.clear)  # the last to be called
        for session in _sessions.values():
            each.callback(session.after_fork)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
