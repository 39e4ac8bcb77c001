"""What this process knows of a lease.

The watchdog refers to it and renews it, but never to the `Lease`, which is the caller's handle. When the last reference
to that handle goes, `Lease.__del__` stops the renewal.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, final

from .._core import events
from .._core.errors import LeaseLostError
from .._core.options import Duration, Options, Unset
from .context import Context, Grantor
from .holdings import Base
from .release import Release
from .report import Report
from .request import Phase, Request
from .validity import GONE_FROM_SERVER, REVOKED, End, Validity

if TYPE_CHECKING:
    from .block import BodyTask

log = logging.getLogger("aiolocks")

_REVOKED = Phase.REVOKED  # looked up in half the time


class Renewer(Protocol):
    """Renews leases."""

    def add(self, state: "LeaseState", now: float) -> None:
        """Renew this lease from *now* on."""

    def stop_renewing(self, state: "LeaseState") -> None:
        """Never renew this lease again."""


class ModeChanges(Protocol):
    """Changes the mode of an RWLock's lease. It knows how a lease is acquired; a lease does not."""

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

    Its state is `validity`: while it lasts, after its end, and once `on_server` is False. Invariant: once it has ended,
    it is not renewed, its task can take the name again, and no timer refers to it.
    """

    __slots__ = (
        "_on_loss", "_over", "_runs", "_timer", "base", "body", "changes", "context", "entered", "fence", "grantor",
        "on_server", "options", "renewer", "report", "request", "task", "validity",
    )  # fmt: skip

    def __init__(
        self, context: Context, grantor: Grantor, base: Base, request: Request, options: Options, fence: int,
        validity: Validity, task: "asyncio.Task[Any] | None" = None, report: Report | None = None,
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
        """The caller, while `Holdings` lists the lease. A lease must not keep a task that has ended."""
        self.report = report
        self.changes = changes
        self.renewer: Renewer | None = None
        self.body: BodyTask | None = None
        """The task in the block that this lease is for, until it leaves the block."""
        self.entered = False
        """A block was entered with it, and releases it."""
        self.on_server = True
        """Its release on the server has not begun."""
        self._runs: Runs | None = None
        self._on_loss: Callable[[], None] | None = None
        self._over: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None

    def renew_from(self, now: float) -> None:
        """Have it renewed from *now* on, if its options say so."""
        session, options = self.context.session, self.options
        fast = options.renewed_in_loop and not options.track
        renewer = session.watchdog if fast else session.renewer_of(self)
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

    def enter(self, body: "BodyTask") -> None:
        self.body = body
        self.entered = True
        if self.options.on_lost == "cancel":
            self._on_loss = body.stop
            if self.renewer is None and self.over:
                body.stop()  # a listener to its first event blocked the loop for longer than it lasts
            if not self.options.renewed_in_loop:
                self.watch_deadline()

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
        if self.body is not None:
            self.body.no_longer_inside()

    def unlist(self) -> None:
        """The `release()` of the primitive, in the task that took it, no longer finds the lease or its loss."""
        holdings = self.context.holdings
        if self.task is not None:
            holdings.remove(self.task, self)
            self.task = None  # a revoked lease is kept for a while, and must not keep its task
        elif self.validity.lost and self.over:
            holdings.reported(asyncio.current_task(self.context.loop), self)

    def unlisted(self) -> None:
        self.task = None

    # Its end.

    def lose(self, reason: str) -> None:
        """Note the loss, once: log one warning, and wake the body and the callers that wait for it."""
        if self.over:
            return
        if self.missed:
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
    def missed(self) -> bool:
        """Whether its loss is worth a warning: it should have lasted longer, or its block is still open.

        A lease taken by hand with `renew=False` ends as planned. `Holdings` warns of a dropped lease.
        """
        return self.renewer is not None or self.body is not None

    def lose_from_thread(self, reason: str) -> None:
        """Record a loss from another thread: `held` is False at once; the body is stopped when the loop next runs."""
        self.validity.cut(reason)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.context.loop.call_soon_threadsafe(self.lose, reason)

    def end(self, now: float, end: End = End.RELEASED) -> bool:
        """Note that the holder lets it go at *now*; return whether it was valid until then."""
        self._ended()  # either way: if it was not valid any more, `lose` notes that
        if self.validity.let_go(now, end):
            return True
        self.lose(self.validity.reason)
        return False

    def hand_off(self, now: float) -> None:
        """End it here, because another holder goes on with it: it is neither renewed nor released any more."""
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
        """Begin to release it on the server, after its end here was noted. Return None if that was done before."""
        if not self.on_server:
            return None
        self.on_server = False
        validity = self.validity
        until = validity.deadline if self.request.phase is not _REVOKED else validity.revoked_until()
        if (self.report is not None or events.listeners) and validity.end is End.RELEASED:
            then = partial(self._emit_released, now, then)
        return self.context.undo(self.grantor, self.request, until if until > now else now, then, wait)

    def released_elsewhere(self) -> None:
        """Note that its release on the server is another's task."""
        self.on_server = False

    def _ended(self) -> None:
        if self.body is not None:
            self.no_longer_inside()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.renewer is not None:
            self.renewer.stop_renewing(self)
        if self._over is not None:
            self._over.set()

    def watch_deadline(self) -> None:
        """From now on note the loss at the deadline by a timer, and not only when a caller asks about the lease."""
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
        if not self.over:
            if self._over is None:
                self._over = asyncio.Event()
            self.watch_deadline()
            await self._over.wait()

    # Events.

    def emit(self, kind: events.Kind, seconds: float) -> None:
        """Report an event of it, if there are listeners, or events were wanted when the caller asked."""
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
        """Report the end of the lease that was let go at *now*: the reply says whether the server still had it."""
        self.emit_end(now, gone=release.trouble is None and release.ended is False)
        if then is not None:
            then(release)

    def emit_end(self, now: float, *, gone: bool = False) -> None:
        """Report that it was let go at *now*, or if *gone* that the server no longer had it by then."""
        kind: events.Kind = "released" if not gone else "revoked" if self.request.revoked else "lost"
        self.emit(kind, now - self.validity.begun)

    def __repr__(self) -> str:
        return f"<LeaseState {self.what} {self.validity!r}>"


def loss_error(kind: str, name: str, fence: int, reason: str) -> LeaseLostError:
    return LeaseLostError(
        f"{kind} {name!r}: {reason}; stop acting on it", name=name, fencing_token=fence, reason=reason
    )
