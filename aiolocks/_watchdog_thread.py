"""A watchdog in a thread of its own, which renews while the event loop is blocked.

The thread has a loop and a connection to itself, and shares with the session only what each lease says: its deadline,
which a confirmed renewal moves, and whether it is over. It must not keep a dead handler's lease for ever: it stops
renewing when the session's loop has shown no life for `max_stall` seconds, and ends when that loop is closed.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, final

from ._commands import Commands
from ._lease_state import LeaseState
from ._watchdog import Watchdog

_LOOK = 0.2
"""Seconds between the thread's looks at whether the session's loop is closed."""

_LONGEST_END = 0.5
"""Seconds that the end of a session waits for its thread."""


@final
class ThreadWatchdog:
    """Starts its thread with the first lease; `close` ends it. All methods belong to the session's thread."""

    def __init__(self, pool: Any, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._loop = loop
        self._clock = clock
        self._live: set[LeaseState] = set()
        self._thread: threading.Thread | None = None
        self._inner: asyncio.AbstractEventLoop | None = None
        self._commands: Commands | None = None
        self._watchdog: Watchdog | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._beaten_at = 0.0

    def add(self, state: LeaseState, now: float) -> None:
        """Renew this lease from *now* on."""
        self._tell(Watchdog.add, state, now)
        self._live.add(state)
        if self._beating is not None:
            self._beating.cancel()
        self._beat()  # this lease may allow a shorter stall than the others

    def forget(self, state: LeaseState) -> None:
        """Never renew this lease again; a renewal on its way changes nothing, because the lease is over."""
        if state in self._live:
            self._live.discard(state)
            self._tell(Watchdog.forget, state)

    def stalled(self, longest: float, now: float) -> bool:
        """Whether the session's loop has not come round for *longest* seconds. Asked by the thread."""
        return self._loop.is_closed() or now - self._beaten_at > longest

    def let_go(self) -> None:
        """In a forked child, which has no copy of the thread: see `Link.let_go`."""
        if self._commands is not None:
            self._commands.let_go()

    def close(self) -> None:
        """End the thread, and wait for that: it takes a moment only."""
        self._live.clear()
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        thread, self._thread = self._thread, None
        if thread is not None and self._inner is not None:
            inner, self._inner, self._watchdog, self._commands = self._inner, None, None, None
            try:
                inner.call_soon_threadsafe(inner.stop)
            except RuntimeError:  # it has ended by itself
                return
            thread.join(_LONGEST_END)

    def _tell(self, method: Callable[..., None], *what: LeaseState | float) -> None:
        if self._inner is None or self._watchdog is None:
            self._start()
        assert self._inner is not None
        assert self._watchdog is not None
        self._inner.call_soon_threadsafe(method, self._watchdog, *what)

    def _start(self) -> None:
        self._beaten_at = self._clock()
        inner = asyncio.new_event_loop()
        commands = Commands(self._pool, inner, self._clock, lambda: None)
        watchdog = Watchdog(inner, self._clock, commands, self.stalled)
        thread = threading.Thread(
            target=_run, args=(inner, watchdog, commands, self._loop), name="aiolocks-watchdog", daemon=True
        )
        try:
            thread.start()
        except BaseException:  # the machine has no thread to spare
            inner.close()
            raise
        self._inner, self._commands, self._watchdog, self._thread = inner, commands, watchdog, thread

    def _beat(self) -> None:
        """Show life, four times in the shortest stall that any lease allows."""
        self._beating = None
        self._beaten_at = self._clock()
        if self._live:
            pause = min(state.options.max_stall for state in self._live) / 4
            self._beating = self._loop.call_later(min(pause, 1.0), self._beat)


def _run(
    inner: asyncio.AbstractEventLoop, watchdog: Watchdog, commands: Commands, outer: asyncio.AbstractEventLoop
) -> None:
    def look() -> None:
        if outer.is_closed():
            inner.stop()
        else:
            inner.call_later(_LOOK, look)

    try:
        inner.call_soon(look)
        inner.run_forever()
    finally:
        watchdog.close()
        commands.close()
        inner.run_until_complete(_settle())
        inner.close()


async def _settle() -> None:
    """Let what `close` has cancelled run its course."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_LONGEST_END)
    await asyncio.sleep(0)
