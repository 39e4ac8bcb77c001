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
from .._grantors.session import Session
from .._manager import LockManager
from .._redis.clients import in_memory, pool_of

_QUIET_TURNS = 3
_MAX_TURNS = 10_000
"""Maximum number of iterations of the loop in which to wait for a program that is never idle."""

_BEGAN = time.time()

_moved = 0.0
"""Seconds by which tests have advanced all clocks of this process."""


def _lease_clock() -> float:
    return lease_clock() + _moved


@final
class _ServerTime:
    """Replaces the module `time` in the in-memory server, with the time of the test."""

    def time(self) -> float:
        jumping: Callable[[], float] | None = getattr(asyncio._get_running_loop(), "clock", None)
        return time.time() + _moved if jumping is None else _BEGAN + jumping()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def follow_in_memory() -> None:
    """Make in-memory servers use the time of the test."""
    with suppress(ImportError):
        import_module("fakeredis")
    replacement = _ServerTime()
    for name, module in list(sys.modules.items()):
        if name.startswith("fakeredis") and getattr(module, "time", None) is time:
            vars(module)["time"] = replacement


@final
class Clock:
    """Advances time for a `LockManager` on ``memory://``, and for the event loop of the test::

        async def test_a_lease_that_is_not_renewed_ends():
            locks = LockManager.from_url("memory://", ttl=10, renew=False)
            clock = Clock(locks)
            lease = await locks.lock("orders:42").acquire()
            await clock.advance(11)
            assert lease.lost

    All timers fire in order when they are due, so a lease is renewed all the time. Sockets and threads are real, and
    are not waited for: leases with ``watchdog="thread"`` are not renewed, because their thread uses real time. Other
    in-memory servers in the process follow the same clock.

    Args:
        locks: A manager from ``LockManager.from_url("memory://")`` that has not been used yet.

    Raises:
        TypeError: Not a manager on an in-memory server.
        RuntimeError: The manager has been used.
    """

    def __init__(self, locks: LockManager) -> None:
        given: object = locks
        pool = pool_of(given.client) if isinstance(given, LockManager) else None
        if pool is None or not in_memory(pool):
            raise TypeError('a Clock moves only the time of a LockManager.from_url("memory://"), not of a real server')
        if Session.begun(pool):
            raise RuntimeError("make the Clock before the first lock is taken with this manager")
        setattr(Context, "clock", staticmethod(_lease_clock))  # noqa: B010  # a function in a class would be bound
        follow_in_memory()

    async def advance(self, seconds: Duration) -> None:
        """Advance the time, and run everything that is due until then.

        Args:
            seconds: Seconds, or a timedelta.

        Raises:
            RuntimeError: The loop is not one of asyncio's own (uvloop's is not).

        A cancellation stops the clock where it is.
        """
        global _moved
        left = check_seconds("seconds", seconds)
        if left < 0:
            raise ValueError(f"time never goes back: seconds must be >= 0, not {seconds!r}")
        loop = _movable(asyncio.get_running_loop())
        end = _moved + left
        await _settle(loop)
        while _moved < end:
            due = min((timer.when() for timer in loop._scheduled if not timer.cancelled()), default=loop.time() + left)
            _moved = min(end, _moved + max(due - loop.time(), 0.0) + loop._clock_resolution)
            await _settle(loop)


def _movable(loop: asyncio.AbstractEventLoop) -> Any:
    """Return *loop*, prepared so that its time can be advanced."""
    if not isinstance(loop, asyncio.BaseEventLoop):
        raise RuntimeError(f"a Clock moves the time of asyncio's own loops, not of a {type(loop).__name__}")
    if "time" not in vars(loop):
        vars(loop)["time"] = partial(_time_of, loop.time, _moved)
    return loop


def _time_of(real: Callable[[], float], moved_before: float) -> float:
    return real() + _moved - moved_before


async def _settle(loop: Any) -> None:
    """Wait until nothing more happens unless time advances."""
    quiet = 0
    for _ in range(_MAX_TURNS):
        await asyncio.sleep(0)
        quiet = 0 if loop._ready else quiet + 1
        if quiet == _QUIET_TURNS:
            return
