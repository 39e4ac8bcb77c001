"""One timer for many bounds that are rarely reached: it is set for the earliest, and looks at all when it fires.

A timer for each bound would cost more than most of the work that it bounds.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar, final


class Watched(Protocol):
    """What has a bound: its `due`, on the timer's clock; `math.inf` for none."""

    due: float


T = TypeVar("T", bound=Watched)

_LATE = 0.01
"""Seconds by which a look may be late, as any timer may; if it is later, the loop was busy with something else."""

_MOMENT = 0.001
"""Seconds in which a loop that was busy reads what has arrived meanwhile, as uvloop runs its timers first."""


@final
class OverdueTimer(Generic[T]):
    """Calls *overdue* for each of the *watched* whose time has come."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], watched: Callable[[], Iterable[T]],
        overdue: Callable[[T], None],
    ) -> None:  # fmt: skip
        self._loop = loop
        self._clock = clock
        self._watched = watched
        self._overdue = overdue
        self._timer: asyncio.TimerHandle | None = None
        self._was_late = False
        self.looks_at = math.inf
        """When it looks next; an earlier bound must be passed to `expect`."""

    def expect(self, due: float, now: float) -> None:
        """Look at *due* at the latest."""
        if due < self.looks_at:
            self.close()
            self.looks_at = due
            self._timer = self._loop.call_later(max(due - now, 0.0), self._look)

    def close(self) -> None:
        """Look no more, until the next bound."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.looks_at = math.inf

    def _look(self) -> None:
        self._timer = None
        now, due, self.looks_at = self._clock(), self.looks_at, math.inf
        self._was_late = now > due + _LATE and not self._was_late
        if self._was_late:  # what looks overdue may be waiting to be read; but a loop that is always late is no excuse
            self.expect(now + _MOMENT, now)
            return
        for item in [item for item in self._watched() if item.due <= now]:
            self._overdue(item)
        first = min((item.due for item in self._watched()), default=math.inf)
        if first < math.inf:  # equivalent: comparison, no bound is later
            self.expect(first, now)
