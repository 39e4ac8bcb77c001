"""How long a lease is certainly valid, and how it ended. Pure: it reads one clock, and sends nothing.

The deadline is the one truth. Each question compares it with the clock, so a loss shows before anything has noticed it.
"""

import enum
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, final

from .._core.timing import margin

if TYPE_CHECKING:
    from .context import Context
    from .request import Terms

GONE_FROM_SERVER = (
    "it is gone from the server: its key expired, was deleted or evicted, or was lost in a FLUSHALL, a restart or a "
    "failover"
)

REVOKED = "revoked"
"""Why a revoked lease is lost; a colon and the reason can follow."""


class End(enum.Enum):
    """How a lease ended."""

    RELEASED = "released"
    HANDED_OFF = "handed off"
    LOST = "lost"
    REVOKED = "revoked"
    FORKED = "forked"
    """The running process is a fork of the holder, which still has the lease."""


MOVES: Mapping[End | None, tuple[End, ...]] = {None: tuple(End), **dict.fromkeys(End, ())}
"""Which end can follow which state. None: the lease lasts. An end is final."""

_LOSSES = (End.LOST, End.REVOKED, End.FORKED)


class Validity:
    """The deadline of one lease, and its end.

    Its state is the deadline and `end`. Invariant: the deadline of a lease that lasts only moves forward, except where
    the holder itself asks for less (`shorten`) or the watchdog thread notices a loss (`cut`); `end` is final.
    """

    __slots__ = ("_cut", "_end", "_reason", "_session", "begun", "deadline", "max_hold", "ttl")

    def __init__(
        self, session: "Context", valid_from: float, terms: "Terms", begun: float, max_hold: float | None
    ) -> None:
        self._session = session
        self.deadline = valid_from + terms.valid_for  # defect: P1-deadline
        """Local time from which on the holder must not act."""
        self.begun = begun
        """When it was granted, by the clock of this process; a failover may set that of fencing tokens back."""
        self.ttl = terms.ttl
        self.max_hold = max_hold
        self._end: End | None = None
        self._reason: str | None = None
        self._cut: tuple[str, float] | None = None
        """Why the watchdog thread has cut it, before the event loop has noted the loss, and its deadline until then."""

    @property
    def end(self) -> End | None:
        """How it ended; None while it lasts, and while its end is not noted."""
        return End.FORKED if self._end is None and self._session.forked else self._end

    @property
    def held(self) -> bool:
        """Whether it is certainly valid now."""
        return self._end is None and self._session.clock() < self.deadline and not self._session.forked

    @property
    def lost(self) -> bool:
        """Whether it ended before its holder let it go."""
        end = self.end
        return self._session.clock() >= self.deadline if end is None else end in _LOSSES

    @property
    def renew_until(self) -> float:
        """Local time from which on it is not renewed, because of `max_hold`."""
        return math.inf if self.max_hold is None else self.begun + self.max_hold

    @property
    def endangered_at(self) -> float:
        """Local time at which it has not been renewed for half of its TTL, counted from the grant at the earliest."""
        half = self.ttl / 2
        return max(self.deadline + margin(self.ttl) - half, self.begun + half)

    @property
    def reason(self) -> str:
        if self._session.forked:
            return "this process was forked, and the lease is the parent's"
        if self._reason is not None:
            return self._reason
        if self._cut is not None:
            return self._cut[0]
        if self._session.clock() >= self.renew_until:
            return f"held for longer than max_hold ({self.max_hold:g} s), and so not renewed any more"
        return f"not renewed within its {self.ttl:g} s TTL"

    def revoked_until(self) -> float:
        """Return the local time until which it keeps others out although it is revoked.

        W16: the server ends a revoked lease only when its holder releases it, or with its TTL.
        """
        return (self.deadline if self._cut is None else self._cut[1]) + margin(self.ttl)

    def extend(self, deadline: float) -> None:
        """Count a renewal that the server confirmed. A late one revives nothing."""
        if deadline > self.deadline and self.held:
            self.deadline = deadline

    def shorten(self, deadline: float) -> None:
        """Count on less than was granted, before the server is asked to cut it. Only `compat` does that."""
        self.deadline = min(self.deadline, deadline)

    def cut(self, reason: str) -> None:
        """End the validity now, from another thread; the event loop notes the loss when it next runs."""
        self._cut = reason, self.deadline
        self.deadline = -math.inf

    def let_go(self, now: float, end: End) -> bool:
        """Note that its holder ended it at *now*. If it was not valid any more, note nothing and return False."""
        if self._end is not None or now >= self.deadline or self._session.forked:
            return False
        self._end = end
        return True

    def finish(self, end: End, reason: str | None = None) -> None:
        """Note how it ended, once."""
        if end not in MOVES[self._end]:
            raise RuntimeError(f"a lease that was {self._end} cannot become {end}")
        self._end, self._reason = end, reason

    def __repr__(self) -> str:
        end = self.end
        return f"<Validity {'held' if self.held else 'lost' if end is None else end.value}>"


@final
class Share(Validity):
    """One share *of* the lease of an `RLock`: it has the deadline of the lease, and can be released by itself."""

    __slots__ = ("_of",)

    def __init__(self, of: Validity, terms: "Terms", begun: float, max_hold: float | None) -> None:
        self._of = of
        super().__init__(of._session, begun, terms, begun, max_hold)

    if TYPE_CHECKING:
        deadline: float
    else:

        @property
        def deadline(self) -> float:
            return self._of.deadline

        @deadline.setter
        def deadline(self, deadline: float) -> None:
            pass  # the lease has it, and moves it

    @property
    def reason(self) -> str:
        forked = self._session.forked
        return super().reason if forked or self._reason is not None else self._of.reason

    def extend(self, deadline: float) -> None:
        self._of.extend(deadline)
