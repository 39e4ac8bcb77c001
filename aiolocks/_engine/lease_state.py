"""What the engine knows of one acquisition: what was asked for, and the lease until it is released or lost.

The watchdog keeps it alive; the caller has a `Lease`, so that one forgotten by its caller stops being renewed. Its
deadline is the one truth: each question compares it with the clock, and only a confirmed renewal moves it on.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, final

from .._core import events
from .._core.errors import LeaseLostError
from .._core.options import Duration, Options, Unset
from .._core.timing import margin
from .cancellation import BodyTask
from .closing import Closing
from .context import Context, Grantor
from .holdings import Base
from .release import Release
from .request import Granted, Request

log = logging.getLogger("aiolocks")


class Renewer(Protocol):
    """Who renews leases."""

    def add(self, state: "LeaseState", now: float) -> None:
        """Renew this lease from *now* on."""

    def forget(self, state: "LeaseState") -> None:
        """Never renew this lease again."""


@final
class Runs:
    """Those of commands that a lease guards: how many there were, and whose turn it is."""

    __slots__ = ("count", "turn")

    def __init__(self) -> None:
        self.count = 0
        self.turn = asyncio.Lock()


_NEVER, _FOR_EVER = -math.inf, math.inf

GONE_FROM_SERVER = (
    "it is gone from the server: its key expired, was deleted or evicted, or was lost in a FLUSHALL, a restart or a "
    "failover"
)

REVOKED = "revoked"


class ModeChanges(Protocol):
    """What RWLock hands to its leases; it knows how they are taken, and a lease does not."""

    def upgrade(self, state: "LeaseState", timeout: Duration | Unset | None) -> "Callable[[], LeaseState]":
        """Return what asks for the exclusive lease beside this one; see `Lease.upgrade`.

        Raises:
            RuntimeError: This one is not upgradeable.
        """
        ...

    async def downgrade(self, state: "LeaseState") -> None:
        """Go on as a reader; see `Lease.downgrade`."""


class LeaseState:
    """What is known of one acquisition: it begins with the grant."""

    __slots__ = (
        "_deadline_before", "_ended", "_hidden_reason", "_over", "_reason", "_runs", "_timer", "acquisition",
        "asked_at", "base", "begun", "changes", "closing", "context", "deadline", "dropped", "due", "entered",
        "failures", "fence", "grantor", "inside", "on_loss", "options", "renew_until", "renewer", "renewing", "request",
        "task", "timeout", "trouble",
    )  # fmt: skip

    def __init__(
        self, context: Context, grantor: Grantor, base: Base, request: Request, options: Options,
        timeout: float | None, task: "asyncio.Task[Any] | None",
    ) -> None:  # fmt: skip
        self.context = context
        self.grantor = grantor
        self.base = base
        self.request = request
        self.options = options
        self.timeout = timeout
        """Seconds that the caller waits for the grant."""
        self.task = task
        """The caller, while `Holdings` lists the lease: a task that has ended must not be kept by its own lease."""
        self.trouble: Exception | None = None
        """Why Redis could not be asked, when it was last tried."""
        self.fence = 0
        self.deadline = self._deadline_before = _NEVER
        """The one truth, written here alone; and what a thread has overwritten."""
        self.renew_until = _FOR_EVER
        self.failures = 0
        self.due = 0.0
        """When the watchdog looks after it next."""
        self.changes: ModeChanges | None = None
        """What changes its mode, of a lease that has one."""
        self.closing: Closing | None = None
        """Ends the wait when the manager through which it was begun is closed."""
        self._runs: Runs | None = None
        self.renewer: Renewer | None = None
        self.entered = False
        """A block was entered with it, which ends it."""
        self.inside: BodyTask | None = None
        """The task in that block, until it leaves."""
        self.renewing = self.dropped = self._ended = False
        self.on_loss: Callable[[], None] | None = None
        self._reason: str | None = None
        self._hidden_reason: str | None = None
        self._over: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.acquisition = 0
        """Its number in events; 0: none was told so far."""
        self.asked_at: float | None = None
        """When the caller asked, if that is to be told."""
        self.begun = 0.0

    def begin(self, granted: Granted, now: float) -> None:
        """Take the lease, and have it renewed."""
        options = self.options
        self.begun = now
        self.fence, valid_from = granted
        self.deadline = valid_from + self.request.valid_for  # defect: P1-deadline
        if options.max_hold is not None:
            self.renew_until = now + options.max_hold
        context = self.context
        renewer: Renewer | None = context.renewer if options.only_renewed_in_loop else context.renewer_of(self)
        if renewer is not None:
            renewer.add(self, now)
            self.renewer = renewer

    @property
    def listed_as(self) -> Base:
        """Under which name `release()` of the primitive finds it."""
        return self.base

    @property
    def what(self) -> str:
        """What is held, for messages."""
        return f"{self.grantor.kind} {self.grantor.name!r}"

    @property
    def ttl(self) -> float:
        """Seconds."""
        return self.request.ttl

    @property
    def runs(self) -> Runs:
        """Of commands that the lease guards."""
        if self._runs is None:
            self._runs = Runs()
        return self._runs

    @property
    def refused_as(self) -> str:
        """Why the server has just said that this lease cannot go on."""
        return REVOKED if self.request.revoked else GONE_FROM_SERVER

    def unlist(self) -> None:
        """Unlist the lease: `release()` of its primitive no longer finds it, nor its loss, in the task that took it."""
        holdings = self.context.holdings
        if self.task is not None:
            holdings.remove(self.task, self)
            self.task = None  # a revoked lease is kept for a while, and must not keep its task
        elif self._reason is not None:
            holdings.reported(asyncio.current_task(self.context.loop), self)

    @property
    def awaits_release(self) -> bool:
        """Whether its loss was noted, but it keeps waiters out until it is released, or ends on the server."""
        return self._reason is not None and self.request.revoked

    @property
    def over(self) -> bool:
        """Nothing may change this lease any more: it was released, or its loss was noted."""
        return self._ended or self._reason is not None or self.context.forked

    @property
    def held(self) -> bool:
        return not self.over and self.context.clock() < self.deadline

    @property
    def lost(self) -> bool:
        if self._reason is not None or self._ended:
            return not self._ended
        return self.context.forked or self.context.clock() >= self.deadline

    @property
    def reason(self) -> str:
        if self.context.forked:
            return "this process was forked, and the lease is the parent's"
        if self._reason is None and self._hidden_reason is None and self.context.clock() >= self.renew_until:
            return f"held for longer than max_hold ({self.options.max_hold:g} s), and so not renewed any more"
        return self._reason or self._hidden_reason or f"not renewed within its {self.request.ttl:g} s TTL"

    def extend(self, deadline: float) -> None:
        """Count a renewal that the server confirmed; a late one revives nothing."""
        if deadline > self.deadline and self.held:
            self.deadline = deadline

    def shorten(self, deadline: float) -> None:
        """Count on less than was granted, before the server is asked to cut it; `compat` alone may ask for that."""
        self.deadline = min(self.deadline, deadline)

    def lose(self, reason: str) -> None:
        """Note the loss, once: log one warning, and tell the body and the callers that wait for it."""
        if not self.over:
            self._reason = reason
            if self.missed:
                log.warning("%s", self.error(reason))
            self._conclude()
            self.grantor.forget(self.request)
            if self.task is not None:
                self.context.holdings.lost(self.task, self)
            if self.on_loss is not None:
                self.on_loss()
            if self.acquisition or events.listeners:
                self.tell("revoked" if reason == REVOKED else "lost", self.context.clock() - self.begun)

    @property
    def missed(self) -> bool:
        """Whether its end is worth a warning: it should have lasted longer, or its block is still open.

        A lease taken by hand with `renew=False` ends as planned. `Holdings` warns of a dropped lease.
        """
        return self.renewer is not None or self.inside is not None

    def lose_from_thread(self, reason: str) -> None:
        """Note the loss from another thread: the clock shows it at once, the loop when it comes round."""
        self._deadline_before, self.deadline = self.deadline, -math.inf
        self._hidden_reason = reason
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.context.loop.call_soon_threadsafe(self.lose, reason)

    def end(self, now: float) -> bool:
        """Stop renewing, because the holder lets go; True if the lease was valid until *now*."""
        if now < self.deadline and not self._ended and self._reason is None and not self.context.forked:
            self._ended = True
            self._conclude()
            return True
        self.lose(self.reason)
        return False

    @property
    def shares(self) -> int:
        """How often it is held in this process."""
        return 1

    def hand_over(self, now: float) -> None:
        """End it here, as others are to have it: it is neither renewed nor released any more."""
        self.dropped = True
        self.end(now)
        self.unlist()

    def let_lapse(self, on_lapsed: "Callable[[LeaseState], None]") -> None:
        """Renew no more, as no reference to the lease is left; tell *on_lapsed* unless it is released before."""
        if self.renewer is not None:
            self.renewer.forget(self)
            self.renewer = None
        self.on_loss = partial(on_lapsed, self)
        self.watch_deadline()

    def drop(
        self, now: float, wait: float | None = None, then: "Callable[[Release], None] | None" = None
    ) -> Release | None:
        """Begin to end the lease on the server, after its end here was noted; None if there is nothing to do."""
        if self.dropped:
            return None
        self.dropped = True
        if self.options.min_hold_ms:
            self.request.keep_for(self.options.min_hold_ms)
        until = self.deadline
        if self.request.revoked:  # it keeps others waiting until it is released, or ends
            until = max(until, self._deadline_before) + margin(self.request.ttl)
        if self._ended and (self.acquisition or events.listeners):
            then = partial(self._tell_released, now, then)
        return self.context.undo(self.grantor, self.request, until if until > now else now, then, wait)

    def watch_deadline(self) -> None:
        """From now on note the loss at the deadline by a timer, and not only when the lease is asked about."""
        if self._timer is None and not self.over:
            self._look()

    def _look(self) -> None:
        """Note the loss if the deadline has passed; renewals move it, so it is read anew each time."""
        self._timer = None
        left = self.deadline - self.context.clock()
        if left <= 0:
            self.lose(self.reason)
        else:
            self._timer = self.context.loop.call_later(left, self._look)

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
        self.no_longer_inside()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.renewer is not None:
            self.renewer.forget(self)
        if self._over is not None:
            self._over.set()

    # Who is told of it: called only if `acquisition` is not 0, or there are `events.listeners`.

    def tell_asked(self) -> None:
        """Begin to tell what becomes of it, as the caller asks."""
        self.acquisition = events.number()
        self.asked_at = self.context.clock()
        if self.request.wait:
            self.request.on_busy = self._tell_waiting

    def _tell_waiting(self) -> None:
        self.tell("waiting", self._waited(self.context.clock()))

    def _waited(self, now: float) -> float:
        """Return for how long the caller has waited, or, if nobody listened when it asked, since the server was."""
        since = self.request.asked_at if self.asked_at is None else self.asked_at
        return 0.0 if since is None else now - since

    def tell_outcome(self, kind: events.Kind) -> None:
        """Tell how the waiting ended: with a lease, as it has *begun*, or without."""
        self.request.on_busy = None  # or the two would keep each other
        if kind != "acquired":
            self.tell(kind, self._waited(self.context.clock()))
            return
        self.tell(kind, self._waited(self.begun))
        if self.renewer is None:
            self.watch_deadline()  # or its loss would be known when somebody asks

    def tell(self, kind: events.Kind, seconds: float) -> None:
        """Tell what has happened to it."""
        if not self.acquisition:
            self.acquisition = events.number()
        grantor = self.grantor
        fields = (kind, grantor.name, grantor.kind, seconds, self.fence, self.acquisition)
        events.emit(events.new(events.Event, fields))

    def tell_from_thread(self, kind: events.Kind, seconds: float) -> None:
        """The same from another thread, unless the lease is over before the loop comes round."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.context.loop.call_soon_threadsafe(self.tell_if_held, kind, seconds)

    def tell_if_held(self, kind: events.Kind, seconds: float) -> None:
        """The same, unless the lease is over."""
        if not self.over:
            self.tell(kind, seconds)

    def tell_handed_over(self, now: float, kind: events.Kind) -> None:
        """Tell what became of the lease that was let go at *now*, to be offered to others, if that is wanted."""
        if self.acquisition or events.listeners:
            self.tell(kind, now - self.begun)

    def _tell_released(self, now: float, then: "Callable[[Release], None] | None", release: Release) -> None:
        """Tell that the lease which was let go at *now* has ended: whether it was the server's too is known by now."""
        gone = release.trouble is None and release.ended is False
        self.tell("lost" if gone else "released", now - self.begun)
        if then is not None:
            then(release)

    def check(self) -> None:
        if not self.held:
            raise self.error(None if self.lost else "it was released before")

    def error(self, reason: str | None = None) -> LeaseLostError:
        return loss_error(self.grantor.kind, self.grantor.name, self.fence, reason or self.reason)


def loss_error(kind: str, name: str, fence: int, reason: str) -> LeaseLostError:
    """Return the error for a lost lease."""
    return LeaseLostError(
        f"{kind} {name!r}: {reason}; stop acting on it", name=name, fencing_token=fence, reason=reason
    )


class Entry(Protocol):
    """What waits for a block to begin."""

    def open(self, lease: object, state: LeaseState) -> None:
        """Begin its body, with this lease."""
