"""An event loop whose clock jumps: it never waits for a timer, so an hour costs a millisecond.

Sockets and threads are real. Waiting for them takes no time on this clock, so a timer that competes with real I/O
always wins: give code under test an in-memory server, or no timers.
"""

import asyncio
import math
import selectors
import threading
from collections.abc import Callable, Mapping
from typing import Any, final

from ._clock import follow_in_memory

_REAL_WAIT = 0.05
"""Real seconds to wait at once when only the outside world can go on: short, so that Ctrl-C and time limits work."""

_OWN_FILES = 1
"""What every asyncio loop registers for itself: the pipe through which threads and signals wake it."""


@final
class JumpingLoop(asyncio.SelectorEventLoop):
    """Run tasks in virtual time: when none is ready, jump to the next timer at once.

    `time()` starts at 0.0 and moves only by such jumps; however long a callback really takes, it takes no time.
    When nothing is scheduled and neither a socket nor a thread is left that could schedule something, running the
    loop raises `RuntimeError` instead of hanging.

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
        """Return the virtual time in seconds; the same as `time()`, under the name that an injected clock has."""
        return self._now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the executor's threads; *timeout* is ignored, as in virtual time it would be over at once."""
        await super().shutdown_default_executor()

    def _jump(self, seconds: float) -> None:
        self._now += seconds
        # asyncio fires what is due before now + resolution. A real clock's nanosecond vanishes when added to a number
        # of some months, and a timer due exactly now would then never fire.
        self._clock_resolution = max(self._clock_resolution, math.ulp(self._now))


class _JumpingSelector(selectors.BaseSelector):
    """Polls a real selector; instead of waiting, it moves the clock."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        self._real = selectors.DefaultSelector()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready:
            return ready
        if timeout is not None:
            self._jump(max(timeout, 0.0))
            return []
        # Another thread may be about to call back: through the loop's pipe, which is always there. One that has just
        # ended did so before it ended, and so before the second look.
        if len(self._real.get_map()) <= _OWN_FILES and threading.active_count() == 1:
            ready = self._real.select(0)
            if not ready:
                raise RuntimeError("deadlock: nothing is scheduled, and no socket or thread is left to wait for")
            return ready
        return self._real.select(_REAL_WAIT)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.get_key(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()
