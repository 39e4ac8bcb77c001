"""One timer for many deadlines that are rarely reached: it is set for the earliest, and checks all when it fires.

A timer for each deadline would cost more than most of the work that it limits.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar, final


class Watched(Protocol):
    """An object with a deadline: its `due`, on the timer's clock; `math.inf` for none."""

    due: float


T = TypeVar("T", bound=Watched)

_LATE = 0.01
"""Seconds by which any timer may fire late. If it is later, the loop was busy with other work."""

_READING = 0.001
"""Seconds in which a loop that was busy reads the replies that have arrived, as uvloop runs its timers first."""


@final
class OverdueTimer(Generic[T]):
    """Calls *overdue* for each of the *watched* objects whose deadline has passed.

    Invariant: `next_due` is no later than the earliest deadline that was passed to `arm`.
    """

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
        self.next_due = math.inf
        """When it checks next; an earlier deadline must be passed to `arm`."""

    def arm(self, due: float, now: float) -> None:
        """Check no later than *due*."""
        if due < self.next_due:
            self.close()
            self.next_due = due
            self._timer = self._loop.call_later(max(due - now, 0.0), self._check)

    def close(self) -> None:
        """Stop checking, until the next deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.next_due = math.inf

    def _check(self) -> None:
        self._timer = None
        now, due, self.next_due = self._clock(), self.next_due, math.inf
        self._was_late = now > due + _LATE and not self._was_late
        if self._was_late:
            # The replies may have arrived, but are not read yet. A loop that is always late gets this time only once.
            self.arm(now + _READING, now)
            return
        for item in [item for item in self._watched() if item.due <= now]:
            self._overdue(item)
        first = min((item.due for item in self._watched()), default=math.inf)
        if first < math.inf:  # equivalent: comparison, no bound is later
            self.arm(first, now)
