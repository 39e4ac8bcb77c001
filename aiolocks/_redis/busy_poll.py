"""Keeps the loop awake for a reply that comes soon: falling asleep and waking up takes longer than the reply.

A server nearby answers a script within 50 µs. On a virtual machine, falling asleep and waking up costs as much again.
So where replies come soon after each other, the loop keeps turning for the next reply, for a bounded time, and in each
turn yields its processor to any other process that needs it. This is competitive spinning (Karlin, Li, Manasse and
Owicki, "Empirical Studies of Competitive Spinning for a Shared-Memory Multiprocessor", 1991).

Measured with a server on the same two virtual processors: one task that locks and unlocks without a pause is 1.6 times
as fast, two and three such processes 1.3 and 1.1 times. Four are as fast as before, with 5 % more processor time.
"""

import asyncio
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from .pipeline import PendingCall

SOON = 200e-6
"""Maximum number of seconds to stay awake, from the request on. Replies took 100 to 150 µs if the caller's loop was
asleep when they came, and 50 to 100 µs if it was awake."""

_LATELY = 1e-3
"""Seconds for which a fast reply counts. A caller that asks less often finds the server's processor asleep too."""


@final
class BusyPoll:
    """Keeps a loop turning until the expected reply has come, for at most `SOON`, while replies are that fast."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], processors: int | None = None
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._alone = (processors or _processors()) < 2
        """There is only one processor, which the server may need."""
        self.soon_until = -math.inf
        """Until when replies are expected to be that fast."""
        self._expected: PendingCall | None = None
        """The reply for which the loop is kept turning: the newest of several, as replies come in order."""

    def heard(self, now: float, took: float) -> None:
        self.soon_until = now + _LATELY if took < SOON and not self._alone else -math.inf

    def expect(self, request: "PendingCall") -> None:
        """Stay awake for the reply to this newest request, sent before `soon_until`."""
        if self._expected is None:
            self._loop.call_soon(self._turn)
        self._expected = request

    def _turn(self) -> None:
        expected = self._expected
        if expected is not None and expected.receiver is not None and self._clock() < expected.sent_at + SOON:
            os.sched_yield()
            self._loop.call_soon(self._turn)
        else:
            self._expected = None  # and all objects that it refers to


def _processors() -> int:
    """Return the number of processors this process may use, or 1 if the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
