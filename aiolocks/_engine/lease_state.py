"""What this process knows of a lease: how long it is certainly valid, how it ended, and what follows then.

The watchdog refers to a `LeaseState` and renews it, but never to its `LeaseHandle`, which is the caller's `Lease`. When
the last reference to the handle goes, `LeaseHandle.__del__` stops the renewal.

`Validity` is pure: it reads one clock, and sends nothing. The deadline is the one truth. Each question compares it with
the clock, so a loss shows before anything has noticed it.
"""

import asyncio
import contextlib
import enum
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, final

from .._core import events
from .._core.errors import LeaseLostError
from .._core.options import Duration, Options, Unset
from .._core.timing import margin
from .._core.untyped import Task
from .context import Context, Grantor
from .holdings import Base, BodyTask
from .release import Release
from .report import Report
from .request import Phase, Request, Terms

if TYPE_CHECKING:
    from .block import Block

log = logging.getLogger("aiolocks")

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
"""Which ends can follow each state. None stands for a lease that lasts. An end is final."""

_LOSSES = (End.LOST, End.REVOKED, End.FORKED)


class Validity:
    """The deadline of one lease, and its end.

    Its state is the deadline and `end`. Invariant: the deadline of a lease that lasts only moves forward, except where
    the holder itself asks for less (`shorten`) or the watchdog thread notices a loss (`cut`); `end` is final.
    """

    __slots__ = ("_cut", "_end", "_reason", "_session", "begun", "deadline", "max_hold", "ttl")

    def __init__(self, session: Context, valid_from: float, terms: Terms, begun: float, max_hold: float | None) -> None:
        self._session = session
        self.deadline = valid_from + terms.valid_for  # defect: P1-deadline
        """Local time from which on the holder must not act."""
        self.begun = begun
        """When it was granted, by the clock of this process. A failover can set the clock of fencing tokens back."""
        self.ttl = terms.ttl
        self.max_hold = max_hold
        self._end: End | None = None
        self._reason: str | None = None
        self._cut: tuple[str, float] | None = None
        """If the watchdog thread has cut it: why, and the deadline until then. The event loop notes the loss later."""

    @property
    def end(self) -> End | None:
        """How it ended. None while it lasts, and until its end is noted."""
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
        """Why it is lost, or would be now, for errors and the log."""
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
        """Move the deadline forward after a confirmed renewal. A reply that comes late revives nothing."""
        if deadline > self.deadline and self.held:
            self.deadline = deadline

    def shorten(self, deadline: float) -> None:
        """Move the deadline back, before the server is asked to shorten the lease. Only `compat` does that."""
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
        """Note how it ended. Raise RuntimeError if that was noted before; see `MOVES`."""
        if end not in MOVES[self._end]:
            raise RuntimeError(f"a lease that was {self._end} cannot become {end}")
        self._end, self._reason = end, reason

    def __repr__(self) -> str:
        end = self.end
        return f"<Validity {'held' if self.held else 'lost' if end is None else end.value}>"


@final
class Share(Validity):
    """One hold of the lease of an `RLock`. Its deadline is that of the lease, *of*. Its end is its own."""

    __slots__ = ("_of",)

    def __init__(self, of: Validity, terms: Terms, begun: float, max_hold: float | None) -> None:
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


_REVOKED = Phase.REVOKED  # a global is looked up in half the time


class Renewer(Protocol):
    """Renews leases."""

    def add(self, state: "LeaseState", now: float) -> None:
        """Renew this lease from *now* on."""

    def stop_renewing(self, state: "LeaseState") -> None:
        """Never renew this lease again."""


class ModeChanges(Protocol):
    """Changes the mode of an RWLock's lease. Unlike a lease, it knows how a lease is acquired."""

    def upgrade(self, state: "LeaseState", timeout: Duration | Unset | None) -> "Callable[[], Any]":
        """Return the function that begins to ask for the exclusive lease beside this one; see `Lease.upgrade`."""
        ...

    def upgrading(self, state: "LeaseState") -> bool:
        """Whether an upgrade of this lease is held or asked for."""
        ...

    async def downgrade(self, state: "LeaseState") -> None:
        """Go on as a reader; see `Lease.downgrade`."""


@final
class Runs:
    """The runs of commands that a lease guards: their number, and the lock that keeps them apart."""

    __slots__ = ("count", "turn")

    def __init__(self) -> None:
        self.count = 0
        self.turn = asyncio.Lock()


class LeaseState:
    """What this process knows of one lease.

    Its state is the `end` of its `validity`, and `on_server`. Invariant: once it has ended, it is not renewed, its task
    can take the name again, and no timer refers to it.
    """

    __slots__ = (
        "_on_loss", "_over", "_runs", "_timer", "base", "body", "changes", "context", "entered", "fence", "grantor",
        "on_server", "options", "renewer", "report", "request", "task", "validity",
    )  # fmt: skip

    def __init__(
        self, context: Context, grantor: Grantor, base: Base, request: Request, options: Options, fence: int,
        validity: Validity, task: Task | None = None, report: Report | None = None,
        changes: ModeChanges | None = None,
    ) -> None:  # fmt: skip
        self.context = context
        self.grantor = grantor
        self.base = base
        self.request = request
        self.options = options
        self.fence = fence
        self.validity = validity
        self.task = task
        """The task of the caller, while `Holdings` lists the lease. A lease must not keep a task that has ended."""
        self.report = report
        self.changes = changes
        self.renewer: Renewer | None = None
        self.body: BodyTask | None = None
        """The task in the block that this lease is for, until it leaves the block."""
        self.entered = False
        """A block was entered with it, and releases it."""
        self.on_server = True
        """False once its release on the server has begun, or is left to other code or to another process."""
        self._runs: Runs | None = None
        self._on_loss: Callable[[], None] | None = None
        self._over: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None

    def renew_from(self, now: float) -> None:
        """Have it renewed from *now* on, if its options say so."""
        session, options = self.context.session, self.options
        if options.renewed_in_loop and not options.track:  # as `Watchdog.add` does, for speed
            self.renewer = watchdog = session.watchdog
            watchdog.fresh[self] = now
            sorted_at = now + (self.validity.deadline - now) / 4  # equivalent: - + constant, only sorted sooner
            if sorted_at < watchdog.wakes_at:
                watchdog.wake_by(sorted_at)
            return
        renewer = session.renewer_of(self)
        if renewer is not None:
            renewer.add(self, now)
            self.renewer = renewer

    # What it is.

    @property
    def listed_as(self) -> Base:
        """The name under which `release()` of the primitive finds it."""
        return self.base

    @property
    def what(self) -> str:
        """Kind and name, for messages."""
        return f"{self.grantor.kind} {self.grantor.name!r}"

    @property
    def ttl(self) -> float:
        return self.request.terms.ttl

    @property
    def runs(self) -> Runs:
        if self._runs is None:
            self._runs = Runs()
        return self._runs

    @property
    def shares(self) -> int:
        """How often it is held in this process."""
        return 1

    # How it stands.

    @property
    def over(self) -> bool:
        """Whether its end was noted."""
        return self.validity.end is not None

    @property
    def refused_as(self) -> str:
        """Why the server has just said that this lease cannot go on."""
        if not self.request.revoked:
            return GONE_FROM_SERVER
        why = self.request.why_revoked
        return f"{REVOKED}: {why}" if why else REVOKED

    def check(self) -> None:
        """Raise LeaseLostError unless it is held."""
        if not self.validity.held:
            raise self.error(None if self.validity.lost else "it was released before")

    def error(self, reason: str | None = None) -> LeaseLostError:
        return loss_error(self.grantor.kind, self.grantor.name, self.fence, reason or self.validity.reason)

    # Its block, and its place in `Holdings`.

    def enter(self, block: "Block") -> BodyTask:
        """Let a loss stop the task that enters *block*, from now on. The end of the block releases the lease."""
        names = self.base if isinstance(self.base, tuple) else (self.base,)
        permits = self.request.terms.permits  # the block counts under this mode, even after a downgrade
        self.body = body = BodyTask(block.entering, block.before, self.grantor, names, permits)
        self.entered = True
        if self.options.on_lost == "cancel":
            self._on_loss = body.stop
            if not self.options.renewed_in_loop:
                if self.over:
                    body.stop()  # a listener to "acquired" blocked the loop for longer than the lease lasts
                self.watch_deadline()
        return body

    def call_on_loss(self, callback: Callable[[], None] | None) -> None:
        """Call *callback* when it is lost, in place of the callback before."""
        self._on_loss = callback
        if callback is not None and not self.options.renewed_in_loop:
            self.watch_deadline()  # nothing else notices the deadline in time

    def leave(self, now: float) -> bool:
        """Note that its block is left at *now*, which ends it; return whether it was valid until then."""
        self._on_loss = self.body = None
        return self.end(now)

    def no_longer_inside(self) -> None:
        """See `BodyTask.no_longer_inside`."""
        if self.body is not None:
            self.body.no_longer_inside()

    def unlist(self) -> None:
        """Let the `release()` of the primitive, in the task that took the lease, no longer find it or its loss."""
        holdings = self.context.holdings
        if self.task is not None:
            holdings.remove(self.task, self)
            self.task = None  # a revoked lease is kept for a while, and must not keep its task
        elif self.validity.lost and self.over:
            holdings.reported(asyncio.current_task(self.context.loop), self)

    def unlisted(self) -> None:
        """Note that `Holdings` no longer lists it."""
        self.task = None

    # Its end.

    def lose(self, reason: str) -> None:
        """Note the loss, once: log one warning, stop the body, and wake the callers that wait for the end."""
        if self.over:
            return
        if self.worth_warning:
            log.warning("%s", self.error(reason))
        revoked = reason.startswith(REVOKED)
        self.validity.finish(End.REVOKED if revoked else End.LOST, reason)
        self._ended()
        self.grantor.forget(self.request)
        if self.task is not None:
            self.context.holdings.lost(self.task, self)
        if self._on_loss is not None:
            self._on_loss()
        self.emit("revoked" if revoked else "lost", self.context.clock() - self.validity.begun)

    @property
    def worth_warning(self) -> bool:
        """Whether to log its loss: it should have lasted longer, or its block is still open.

        A lease taken by hand with `renew=False` ends as planned, unless tracking finds that it has ended before its
        deadline. `Holdings` warns of a dropped lease.
        """
        if self.body is not None or self.renewer is None:
            return self.body is not None
        return self.options.renew or self.context.clock() < self.validity.deadline

    def lose_from_thread(self, reason: str) -> None:
        """Record a loss from another thread: `held` is False at once; the body is stopped when the loop next runs."""
        self.validity.cut(reason)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.context.loop.call_soon_threadsafe(self.lose, reason)

    def end(self, now: float, end: End = End.RELEASED) -> bool:
        """Note that the holder lets it go at *now*. If it was not valid until then, note its loss and return False."""
        self._ended()  # either way: if it was not valid any more, `lose` notes that
        if self.validity.let_go(now, end):
            return True
        self.lose(self.validity.reason)
        return False

    def hand_off(self, now: float) -> None:
        """End it here, because another process goes on with it. It is neither renewed nor released any more."""
        self.on_server = False
        self.end(now, End.HANDED_OFF)
        self.unlist()

    def let_lapse(self, on_lapsed: "Callable[[LeaseState], None]") -> None:
        """Stop renewing it, because nothing refers to it. Call *on_lapsed* when it ends unreleased."""
        self.stop_renewing()
        self._on_loss = partial(on_lapsed, self)
        self.watch_deadline()

    def stop_renewing(self) -> None:
        if self.renewer is not None:
            self.renewer.stop_renewing(self)
            self.renewer = None

    def release_on_server(
        self, now: float, wait: float | None = None, then: "Callable[[Release], None] | None" = None
    ) -> Release | None:
        """Begin to release it on the server, after its end was noted here. Return None if that began before."""
        if not self.on_server:
            return None
        self.on_server = False
        validity = self.validity
        until = validity.deadline if self.request.phase is not _REVOKED else validity.revoked_until()
        if (self.report is not None or events.listeners) and validity.end is End.RELEASED:
            then = partial(self._emit_released, now, then)
        return self.context.undos.begin(self.grantor, self.request, until if until > now else now, then, wait)

    def released_elsewhere(self) -> None:
        """Note that the caller releases it on the server."""
        self.on_server = False

    def _ended(self) -> None:
        """Stop the renewal and the timer, and wake the callers of `wait_over`."""
        if self.body is not None:
            self.no_longer_inside()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        renewer, watchdog = self.renewer, self.context.session.watchdog
        if renewer is not None and (renewer is not watchdog or watchdog.fresh.pop(self, None) is None):
            renewer.stop_renewing(self)
        if self._over is not None:
            self._over.set()

    def watch_deadline(self) -> None:
        """Set a timer that notes the loss at the deadline. Otherwise only a question about the lease would find it."""
        if self._timer is None and not self.over:
            self._check_deadline()

    def _check_deadline(self) -> None:
        """Note the loss if the deadline has passed. Renewals move it, so it is read again each time."""
        self._timer = None
        left = self.validity.deadline - self.context.clock()
        if left <= 0:
            self.lose(self.validity.reason)
        else:
            self._timer = self.context.loop.call_later(left, self._check_deadline)

    async def wait_over(self) -> None:
        """Wait until its end is noted."""
        if not self.over:
            if self._over is None:
                self._over = asyncio.Event()
            self.watch_deadline()
            await self._over.wait()

    # Events.

    def emit(self, kind: events.Kind, seconds: float) -> None:
        """Report an event of it, if there are listeners or a `Report`, which was begun when the caller asked."""
        if self.report is None:
            if not events.listeners:
                return
            self.report = Report(self.grantor)
        self.report.emit(kind, self.request, seconds, self.fence)

    def emit_from_thread(self, kind: events.Kind, seconds: float) -> None:
        """Report an event from another thread, unless the lease is over when the loop next runs."""
        if self.report is not None or events.listeners:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.context.loop.call_soon_threadsafe(self.emit_if_held, kind, seconds)

    def emit_if_held(self, kind: events.Kind, seconds: float) -> None:
        if not self.over:
            self.emit(kind, seconds)

    def _emit_released(self, now: float, then: "Callable[[Release], None] | None", release: Release) -> None:
        """Report the end of a lease that was let go at *now*: as lost if the server no longer had it, by the reply."""
        self.emit_end(now, gone=release.trouble is None and release.ended is False)
        if then is not None:
            then(release)

    def emit_end(self, now: float, *, gone: bool = False) -> None:
        """Report that it was let go at *now*, or if *gone* that the server no longer had it by then."""
        kind: events.Kind = "released" if not gone else "revoked" if self.request.revoked else "lost"
        self.emit(kind, now - self.validity.begun)

    def __repr__(self) -> str:
        return f"<LeaseState {self.what} {self.validity!r}>"


class LeaseHandle:
    """The base of `Lease`. The lease is renewed while the caller, an open block or `Holdings` refers to this object."""

    __slots__ = ("__weakref__", "_state")

    _state: LeaseState

    def __del__(self) -> None:
        try:
            state = self._state
        except AttributeError:  # `__init__` did not run
            return
        # equivalent: comparison, for speed: `over` looks at `_end` too, but takes three times as long
        if state.validity._end is None and state.on_server and not state.over and not state.context.closed:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                state.context.holdings.dropped(state)


def loss_error(kind: str, name: str, fence: int, reason: str) -> LeaseLostError:
    return LeaseLostError(
        f"{kind} {name!r}: {reason}; stop acting on it", name=name, fencing_token=fence, reason=reason
    )
