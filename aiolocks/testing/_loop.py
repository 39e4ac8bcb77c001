"""An event loop whose clock jumps: it never waits for a timer, so an hour costs a millisecond.

Sockets and threads are real. Waiting for them takes no time on this clock, so a timer that competes with real I/O
always wins: give code under test an in-memory server, or no timers.
"""

import asyncio
import math
import selectors
import threading
from collections.abc import Callable
from typing import final

from ._clock import follow_in_memory

_REAL_WAIT = 0.05
"""Timeout of one real wait, in seconds, when only a socket or thread can continue: short, so that Ctrl-C works."""

_OWN_FILES = 1
"""Number of files that every asyncio loop registers: the pipe through which threads and signals wake it."""


@final
class JumpingLoop(asyncio.SelectorEventLoop):
    """Run tasks in virtual time: when none is ready, jump to the next timer at once.

    `time()` starts at 0.0 and moves only by such jumps, so callbacks take no time. If nothing is scheduled, and no
    socket or thread is left that could schedule something, running the loop raises `RuntimeError` instead of hanging.

    ::

        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(asyncio.sleep(3600))
    """

    _clock_resolution: float  # asyncio's

    def __init__(self) -> None:
        self._now = 0.0
        follow_in_memory()
        super().__init__(_JumpingSelector(self._jump))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def clock(self) -> float:
        """Return the same as `time()`: a context's clock has this name."""
        return self._now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the executor's threads. *timeout* is ignored: in virtual time it would end at once."""
        await super().shutdown_default_executor()

    def _jump(self, seconds: float) -> None:
        self._now += seconds
        # asyncio fires timers due before now + resolution. After some months a nanosecond is lost in rounding, and a
        # timer due exactly now would never fire.
        self._clock_resolution = max(self._clock_resolution, math.ulp(self._now))


class _JumpingSelector(selectors.DefaultSelector):
    """Polls; instead of waiting, it moves the clock."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is not None:
            self._jump(max(timeout, 0.0))
            return []
        # Another thread may be about to call back through the loop's pipe. A thread that has just ended did so before
        # its end, so before this second poll.
        if len(self.get_map()) <= _OWN_FILES and threading.active_count() == 1:
            ready = super().select(0)
            if not ready:
                raise RuntimeError("deadlock: nothing is scheduled, and no socket or thread is left to wait for")
            return ready
        return super().select(_REAL_WAIT)
