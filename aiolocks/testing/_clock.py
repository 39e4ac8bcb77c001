"""A clock that tests move: leases, waiters, renewals, the in-memory server and `asyncio.sleep` follow it."""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, final

from .._core.options import Duration, check_seconds
from .._engine.context import Context, lease_clock
from .._engine.lease import Lease, state_of
from .._grantors.session import Session
from .._manager import LockManager
from .._redis.clients import pool_of

_QUIET_TURNS = 3
_MOST_TURNS = 10_000
"""Turns of the loop after which a program that is never idle is left to itself."""

_BEGAN = time.time()

_moved = 0.0
"""Seconds by which all clocks of this process have been moved on."""


def _lease_clock() -> float:
    return lease_clock() + _moved


@final
class _ServerTime:
    """In place of the module `time`, for the in-memory server: with the time that tests have made."""

    def time(self) -> float:
        jumping: Callable[[], float] | None = getattr(asyncio._get_running_loop(), "clock", None)
        return time.time() + _moved if jumping is None else _BEGAN + jumping()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def follow_in_memory() -> None:
    """Have in-memory servers keep the time that tests make."""
    with suppress(ImportError):
        import_module("fakeredis")
    there = _ServerTime()
    for name, module in list(sys.modules.items()):
        if name.startswith("fakeredis") and getattr(module, "time", None) is time:
            vars(module)["time"] = there


@final
class Clock:
    """Moves time on for a `LockManager` on ``memory://``, and for the event loop that the test runs on::

        async def test_a_lease_that_is_not_renewed_ends():
            locks = LockManager.from_url("memory://", ttl=10, renew=False)
            clock = Clock(locks)
            lease = await locks.lock("orders:42").acquire()
            await clock.advance(11)
            assert lease.lost

    All timers come when they are due on the way, in order, so that a lease which is renewed is renewed all along.
    What waits for something real, such as a socket or a thread, is not waited for. The time of other in-memory
    servers in the process moves along. Leases with ``watchdog="thread"`` are not renewed on the way, as their thread
    lives in real time.

    Args:
        locks: From ``LockManager.from_url("memory://")``. Nothing may have been locked with it so far.

    Raises:
        TypeError: Not a manager on an in-memory server.
        RuntimeError: Something was locked with it before.
    """

    def __init__(self, locks: LockManager) -> None:
        given: object = locks
        pool = pool_of(given.client) if isinstance(given, LockManager) else None
        if pool is None or not pool.connection_class.__module__.startswith("fakeredis"):
            raise TypeError('a Clock moves the time of a LockManager.from_url("memory://"), and of no real server')
        if Session.begun(pool):
            raise RuntimeError("make the Clock before the first lock is taken with this manager")
        setattr(Context, "clock", staticmethod(_lease_clock))  # noqa: B010  # as a static method it is not bound
        follow_in_memory()

    async def advance(self, seconds: Duration) -> None:
        """Move time on, and let everything happen that is due on the way.

        Args:
            seconds: Seconds, or a timedelta.

        Raises:
            RuntimeError: The loop is not one of asyncio's own, as uvloop's is not.

        After a cancellation as much time has passed as has.
        """
        global _moved
        left = check_seconds("seconds", seconds)
        if left < 0:
            raise ValueError(f"time goes on, and never back: seconds must be >= 0, not {seconds!r}")
        loop = _movable(asyncio.get_running_loop())
        end = _moved + left
        await _settle(loop)
        while _moved < end:
            due = min((timer.when() for timer in loop._scheduled if not timer.cancelled()), default=loop.time() + left)
            _moved = min(end, _moved + max(due - loop.time(), 0.0) + loop._clock_resolution)
            await _settle(loop)


def lose(lease: Lease, reason: str = "taken away by a test") -> None:
    """Have *lease* lost at once, as if its key had been deleted: its body is stopped and told, and the name is free.

    For tests of what a program does then. On any server.
    """
    state = state_of(lease)
    state.lose(reason)
    state.release_on_server(state.context.clock())


def _movable(loop: asyncio.AbstractEventLoop) -> Any:
    """Return *loop*, whose time can be moved."""
    if not isinstance(loop, asyncio.BaseEventLoop):
        raise RuntimeError(f"a Clock moves the time of asyncio's own loops, not of a {type(loop).__name__}")
    if "time" not in vars(loop):
        vars(loop)["time"] = partial(_time_of, loop.time, _moved)
    return loop


def _time_of(real: Callable[[], float], moved_before: float) -> float:
    return real() + _moved - moved_before


async def _settle(loop: Any) -> None:
    """Go on until nothing happens any more without time."""
    quiet = 0
    for _ in range(_MOST_TURNS):
        await asyncio.sleep(0)
        quiet = 0 if loop._ready else quiet + 1
        if quiet == _QUIET_TURNS:
            return
