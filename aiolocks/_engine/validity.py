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

GONE_FROM_SERVER = (
    "it is gone from the server: its key expired, was deleted or evicted, or was lost in a FLUSHALL, a restart or a "
    "failover"
)

REVOKED = "revoked"
"""Why a revoked lease is lost."""


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


@final
class Validity:
    """The deadline of one lease, and its end.

    Its state is the deadline and `end`. Invariant: the deadline of a lease that lasts only moves forward, except where
    the holder itself asks for less (`shorten`) or the watchdog thread notices a loss (`cut`); `end` is final.

    A share of an `RLock`'s lease has the deadline *of* that lease, and an end of its own.
    """

    __slots__ = ("_before", "_cut", "_deadline", "_end", "_of", "_reason", "_session", "begun", "max_hold", "ttl")

    def __init__(
        self, session: "Context", deadline: float, begun: float, ttl: float, max_hold: float | None,
        of: "Validity | None" = None,
    ) -> None:  # fmt: skip
        self._session = session
        self._of = of
        self._deadline = self._before = deadline
        self.begun = begun
        """When it was granted, by the clock of this process; a failover may set that of fencing tokens back."""
        self.ttl = ttl
        self.max_hold = max_hold
        self._end: End | None = None
        self._reason: str | None = None
        self._cut: str | None = None
        """Why the watchdog thread has cut it, before the event loop has noted the loss."""

    @property
    def deadline(self) -> float:
        """Local time from which on the holder must not act."""
        return self._deadline if self._of is None else self._of.deadline

    @property
    def end(self) -> End | None:
        """How it ended; None while it lasts, and while its end is not noted."""
        return End.FORKED if self._end is None and self._session.forked else self._end

    @property
    def held(self) -> bool:
        """Whether it is certainly valid now."""
        deadline = self._deadline if self._of is None else self._of._deadline
        return self._end is None and self._session.clock() < deadline and not self._session.forked

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
        if self._of is not None and self._reason is None:
            return self._of.reason
        if self._reason is not None or self._cut is not None:
            return self._reason or self._cut or ""
        if self._session.clock() >= self.renew_until:
            return f"held for longer than max_hold ({self.max_hold:g} s), and so not renewed any more"
        return f"not renewed within its {self.ttl:g} s TTL"

    def kept_on_server(self, *, revoked: bool) -> float:
        """Return the local time until which it can keep others out: its deadline; if it is revoked, its whole TTL.

        W16: the server ends a revoked lease only when its holder releases it, or with its TTL.
        """
        deadline = self._deadline if self._of is None else self._of._deadline
        return max(deadline, self._before) + margin(self.ttl) if revoked else deadline

    def extend(self, deadline: float) -> None:
        """Count a renewal that the server confirmed. A late one revives nothing."""
        if self._of is not None:
            self._of.extend(deadline)
        elif deadline > self._deadline and self.held:
            self._deadline = deadline

    def shorten(self, deadline: float) -> None:
        """Count on less than was granted, before the server is asked to cut it. Only `compat` does that."""
        self._deadline = min(self._deadline, deadline)

    def cut(self, reason: str) -> None:
        """End the validity now, from another thread; the event loop notes the loss when it next runs."""
        self._before, self._deadline = self._deadline, -math.inf
        self._cut = reason

    def let_go(self, now: float, end: End) -> bool:
        """Note that its holder ended it at *now*. If it was not valid any more, note nothing and return False."""
        deadline = self._deadline if self._of is None else self._of._deadline
        if self._end is not None or now >= deadline or self._session.forked:
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
