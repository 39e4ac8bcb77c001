"""What the engine knows of one acquisition: what was asked for, and the lease until it is released or lost.

The watchdog keeps it alive; the caller has a `Lease`, so that one forgotten by its caller stops being renewed. Its
deadline is the one truth: whoever asks compares it with the clock, and only a confirmed renewal moves it.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ._errors import LeaseLostError
from ._ledger import Base
from ._options import Options
from ._request import Granted, Grantor, Request
from ._withdrawal import Withdrawal

if TYPE_CHECKING:
    from ._session import Session
    from ._stop import BodyTask


class Keeper(Protocol):
    """Who renews leases."""

    def add(self, state: "LeaseState", now: float) -> None:
        """Renew this lease from *now* on."""

    def forget(self, state: "LeaseState") -> None:
        """Never renew this lease again."""


TAKEN = "it is gone from the server: expired, deleted, or given to somebody else"


class LeaseState:
    """What is known of one acquisition: it `begins` with the grant."""

    __slots__ = (
        "_ended", "_hidden_reason", "_over", "_reason", "_timer", "base", "deadline", "dropped", "due", "entered",
        "failures", "fence", "grantor", "inside", "keeper", "on_loss", "options", "renew_until", "renewing", "request",
        "session", "task", "timeout", "trouble",
    )  # fmt: skip

    def __init__(
        self, session: "Session", grantor: Grantor, base: Base, request: Request, options: Options,
        timeout: float | None, task: "asyncio.Task[Any] | None",
    ) -> None:  # fmt: skip
        self.session = session
        self.grantor = grantor
        self.base = base
        self.request = request
        self.options = options
        self.timeout = timeout
        """Seconds that the caller waits for the grant."""
        self.task = task
        """The caller, while its ledger lists the lease: a task that has ended must not be kept by its own lease."""
        self.trouble: Exception | None = None
        """Why Redis could not be asked, when it was last tried."""
        self.fence = 0
        self.deadline = -math.inf
        """The one truth; written here alone."""
        self.renew_until = math.inf
        self.failures = 0
        self.due = 0.0
        """When the watchdog looks after it next."""
        self.keeper: Keeper | None = None
        """Who renews it."""
        self.entered = False
        """A block was entered with it, which ends it."""
        self.inside: BodyTask | None = None
        """The task in that block."""
        self.renewing = self.dropped = self._ended = False
        self.on_loss: Callable[[], None] | None = None
        self._reason: str | None = None
        self._hidden_reason: str | None = None
        self._over: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, granted: Granted, now: float) -> None:
        """Take the lease, and have it renewed."""
        options = self.options
        self.fence, counted_from = granted
        self.deadline = counted_from + self.request.valid_for
        if options.max_hold is not None:
            self.renew_until = now + options.max_hold
        if options.renew:
            self.keeper = self.session.keeper(options)
            self.keeper.add(self, now)

    @property
    def listed_as(self) -> Base:
        """Under which name `release()` of the primitive finds it."""
        return self.base

    @property
    def over(self) -> bool:
        """Nothing may change this lease any more: it was released, or its loss was noted."""
        return self._ended or self._reason is not None or self.session.foreign

    @property
    def held(self) -> bool:
        return not self.over and self.session.clock() < self.deadline

    @property
    def lost(self) -> bool:
        if self._reason is not None or self._ended:
            return not self._ended
        return self.session.foreign or self.session.clock() >= self.deadline

    @property
    def reason(self) -> str:
        if self.session.foreign:
            return "this process was forked, and the lease is the parent's"
        if self._reason is None and self._hidden_reason is None and self.session.clock() >= self.renew_until:
            return f"held for longer than max_hold ({self.options.max_hold:g} s), and so not renewed any more"
        return self._reason or self._hidden_reason or f"not renewed within its {self.request.ttl:g} s TTL"

    def extend(self, deadline: float) -> None:
        """Count a renewal that the server confirmed; a late one revives nothing."""
        if deadline > self.deadline and self.held:
            self.deadline = deadline

    def lose(self, reason: str) -> None:
        """Note the loss, once, and tell the body and whoever waits."""
        if not self.over:
            self._reason = reason
            self._conclude()
            self.session.forget(self.request)
            if self.on_loss is not None:
                self.on_loss()

    def lose_from_thread(self, reason: str) -> None:
        """Note the loss from another thread: the clock shows it at once, the loop when it comes round."""
        self.deadline = float("-inf")
        self._hidden_reason = reason
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.session.loop.call_soon_threadsafe(self.lose, reason)

    def end(self, now: float) -> bool:
        """Stop renewing, because the holder lets go; True if the lease was valid until *now*."""
        if now < self.deadline and not self._ended and self._reason is None and not self.session.foreign:
            self._ended = True
            self._conclude()
            return True
        self.lose(self.reason)
        return False

    def let_lapse(self, on_lapsed: "Callable[[LeaseState], None]") -> None:
        """Renew no more, as nobody refers to the lease; *on_lapsed* is told if nobody has released it until its end."""
        if self.keeper is not None:
            self.keeper.forget(self)
        self.on_loss = partial(on_lapsed, self)
        self.watch_deadline()

    def drop(self, now: float) -> Withdrawal | None:
        """Begin to end the lease on the server, after its end here was noted; None if there is nothing to do."""
        if self.dropped:
            return None
        self.dropped = True
        until = self.deadline
        withdrawal = Withdrawal(self.session, self.grantor, self.request, until if until > now else now)
        self.session.forget(self.request)
        return withdrawal

    def watch_deadline(self) -> None:
        """From now on note the loss at the deadline even if nobody looks."""
        if self._timer is None and not self.over:
            self._look()

    def _look(self) -> None:
        """Note the loss if the deadline has passed; renewals move it, so it is read anew each time."""
        self._timer = None
        left = self.deadline - self.session.clock()
        if left <= 0:
            self.lose(self.reason)
        else:
            self._timer = self.session.loop.call_later(left, self._look)

    async def wait_over(self) -> None:
        if not self.over:
            if self._over is None:
                self._over = asyncio.Event()
            self.watch_deadline()
            await self._over.wait()

    def no_longer_inside(self) -> None:
        """Let the task in its block take the name again."""
        if self.inside is not None:
            self.inside.no_longer_inside()

    def _conclude(self) -> None:
        if self.inside is not None:
            self.no_longer_inside()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.keeper is not None:
            self.keeper.forget(self)
        if self._over is not None:
            self._over.set()

    def check(self) -> None:
        if not self.held:
            raise self.error(None if self.lost else "it was released before")

    def error(self, reason: str | None = None) -> LeaseLostError:
        reason = reason or self.reason
        return LeaseLostError(
            f"{self.grantor.kind} {self.grantor.name!r}: {reason}; stop acting on it",
            name=self.grantor.name,
            fencing_token=self.fence,
            reason=reason,
        )
