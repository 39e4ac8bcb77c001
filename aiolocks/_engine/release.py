"""The undo of a request or lease: retried until the server has confirmed it, in the background if necessary."""

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, final

import anyio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core.answers import is_worth_retry
from .._core.overdue_timer import OverdueTimer
from .._core.timing import retry_delay
from .request import Request

if TYPE_CHECKING:
    from .context import Context, Grantor

GRACE = 1.0
"""Maximum number of seconds that leaving a block, or a failed acquire, waits for its undo, which then goes on in the
background."""

RELEASE_TIMEOUT = 10.0
"""Timeout for the reply to `lease.release()`, in seconds. The release then goes on in the background."""


@final
class Undos:
    """The undos of one session that are not done.

    Its state is `under_way` and `pausing`. Invariant: `pausing` has those of `under_way` that wait for their next try.
    """

    def __init__(self, context: "Context") -> None:
        self._context = context
        self.loop = loop = context.loop
        self.clock = clock = context.clock
        self.closed = False
        self.last_begun = 0.0
        """When the newest one began."""
        self.under_way: dict[bytes, Release] = {}
        """By token."""
        self.pausing: dict[tuple[str, str], dict[Release, None]] = {}
        """By kind and name."""
        self.waits = OverdueTimer(loop, clock, lambda: self.under_way.values(), Release.wake)
        """Ends the waits of callers whose time is over."""

    def begin(
        self, grantor: "Grantor", request: Request, until: float, then: "Callable[[Release], None] | None" = None,
        wait: float | None = None,
    ) -> "Release":  # fmt: skip
        """Undo a request or lease; see `Release`. From now on a late grant for its token is returned to the server."""
        context = self._context
        context.tokens.pop(request.token, None)
        release = Release(self, grantor, request, until, then, wait)
        self.last_begun = release.begun
        if not context.tokens and context.idle_timer is None:
            context.schedule_idle_close()
        return release

    def retry_paused(self, kind: str, name: str) -> None:
        """Retry now the undos of that name that wait for their next try, ahead of what the session asks next."""
        # W24: otherwise the session would meet its own lease, which it has released.
        for release in list(self.pausing.get((kind, name), ())):
            release.try_now()

    def retry_all_paused(self) -> None:
        """Do the same for all names, ahead of all other requests over a new link."""
        for kind, name in list(self.pausing):
            self.retry_paused(kind, name)

    def begun_since(self, at: float) -> bool:
        """Whether an undo that is not done began after *at*."""
        # equivalent: comparison, at that instant either is right
        return any(release.begun > at for release in self.under_way.values())

    def close(self, error: Exception) -> None:
        """Finish all, each with its known obstacle, or with *error*. Later undos finish as they begin."""
        self.closed = True
        for release in list(self.under_way.values()):
            release.finish(release.obstacle() or error)
        self.waits.close()


@final
class Release:
    """One undo, retried until it is confirmed, or pointless after *until*.

    Its state is `done` and, once that is true, either `trouble` (why it could not be confirmed) or `ended`: True if the
    undo ended a live lease, False if there was none, and None if there was none after an earlier try without a reply,
    which may have ended the lease (P10). Invariant: until `done`, `Undos.under_way` has it, so that the session lives.
    """

    __slots__ = (
        "_answered_at", "_callbacks", "_failures", "_pause", "_undos", "_until", "begun", "done", "due", "ended",
        "grantor", "on_refused", "request", "trouble", "waited",
    )  # fmt: skip

    def __init__(
        self, undos: Undos, grantor: "Grantor", request: Request, until: float,
        then: "Callable[[Release], None] | None" = None, wait: float | None = None,
    ) -> None:  # fmt: skip
        """Begin it. *then* is called when it is done. *wait* makes `waited`, for at most that many seconds."""
        self._undos = undos
        self.grantor = grantor
        self.request = request
        self._until = until
        self._callbacks: tuple[Callable[[Release], None], ...] = () if then is None else (then,)
        self._failures = 0
        self._pause: asyncio.TimerHandle | None = None
        self._answered_at = None if request.unanswered else math.inf
        """When the request was found to be answered. None means not yet; `math.inf` means before this began."""
        self.begun = now = undos.clock()
        self.due = math.inf
        """Until when a caller waits."""
        self.waited: asyncio.Future[None] | None = None
        """Resolved when it is done, or when the caller's time is over. Cancelling it does not stop the undo."""
        self.done = False
        self.ended: bool | None = None
        self.trouble: BaseException | None = None
        self.on_refused: Callable[[], None] | None = None
        """Called each time that the server refuses it."""
        if wait is not None:  # as `wait` does, for speed
            self.waited = undos.loop.create_future()
            self.due = due = until if until < now + wait else now + wait
            if due < undos.waits.next_due:
                undos.waits.arm(due, now)
        if undos.closed or undos.loop.is_closed():
            grantor.forget(request)  # also its parts, which nothing will undo
            self.finish(RedisConnectionError("the session has ended"))
        else:
            undos.under_way[request.token] = self
            grantor.undo(request, self)

    def wait(self, until: float) -> "asyncio.Future[None]":
        """Return a future that resolves when this is done, or when the time of a caller is over: here, at *until*.

        Several callers get the same future. They must shield it, or a cancelled caller wakes all others.
        """
        undos, waited = self._undos, self.waited
        if waited is None or waited.done():
            waited = self.waited = undos.loop.create_future()
            self.due = math.inf
        if self.done:
            waited.set_result(None)
        elif until < self.due:
            self.due = until
            if until < undos.waits.next_due:
                undos.waits.arm(until, undos.clock())
        return waited

    async def settle(self, until: float) -> None:
        """Wait until it is done or refused, or until *until*. A cancellation is passed on only afterwards."""
        interruption: asyncio.CancelledError | None = None
        # P12: shielded, as a scope around the task may have delivered its cancellation already, and would deliver it
        # again. A shield costs as much as everything else here, so `Block.leave` waits without one.
        with anyio.CancelScope(shield=True):
            while not self.done and not self.refused and self._undos.clock() < until:
                try:
                    await self.wait(until)
                except asyncio.CancelledError as cancelled:
                    interruption = cancelled
        if interruption is not None:
            raise interruption

    def keeps_session(self, now: float) -> bool:
        """Whether the session must stay open for this undo."""
        # W14: a request that may still arrive is worth undoing for a long time, but the connection is kept for no
        # longer than its TTL. The TTL counts again from when the request is found to be answered.
        if self._answered_at is None and not self.request.unanswered:
            self._answered_at = now
        since = self.begun if self._answered_at is None else self._answered_at
        return now < min(self._until, since + self.request.terms.ttl)

    def outcome(self) -> bool | None:
        """Return `ended`, or raise why it is not confirmed yet."""
        trouble = self.obstacle()
        if trouble is not None:
            raise trouble
        if not self.done:
            raise RedisTimeoutError("Redis has not confirmed it in time")
        return self.ended

    @property
    def refused(self) -> bool:
        """Whether the server has replied with an error that the next try will most likely meet again.

        If it has parts, this means that too many servers have refused theirs. A caller gets the error at once. The
        retries go on, because an administrator can grant a missing right or free the disk.
        """
        return isinstance(trouble := self.obstacle(), Exception) and not is_worth_retry(trouble)

    def obstacle(self) -> BaseException | None:
        """Return why it is not confirmed, if that is known. If it has parts, why too few of them are."""
        if self.done or self.trouble is not None:
            return self.trouble
        return self.grantor.obstacle(self.request)

    def try_now(self) -> None:
        """Try again, without waiting for the end of the pause."""
        if self._pause is not None:
            self._end_pause(self._pause)
        if not self.done:
            self.grantor.undo(self.request, self)

    def _end_pause(self, pause: asyncio.TimerHandle) -> None:
        pause.cancel()
        self._pause = None
        key = self.grantor.kind, self.grantor.name
        pausing = self._undos.pausing[key]
        del pausing[self]
        if not pausing:
            del self._undos.pausing[key]

    def _try(self) -> None:
        self._failures += 1
        self.try_now()

    def __call__(self, ended: bool | Exception) -> None:
        """Take the answer to a try, or the exception in its place."""
        if self.done:
            return
        if isinstance(ended, bool):
            # P10: "nothing there" after a try without a reply leaves open what ended the lease.
            self.finish(None if self.request.silences and not ended else ended)
            return
        self.trouble = ended
        pause = retry_delay(self.request.terms.ttl, self._failures + 1)
        if self._undos.clock() + pause >= self._until:
            self.finish(ended)
        elif self._pause is None:
            self._pause = self._undos.loop.call_later(pause, self._try)
            self._undos.pausing.setdefault((self.grantor.kind, self.grantor.name), {})[self] = None
        if self.refused:
            self.wake()
            if self.on_refused is not None:
                self.on_refused()

    def finish(self, result: bool | BaseException | None) -> None:
        """End it: *result* becomes `trouble` if it is an exception, otherwise `ended`."""
        if self.done:
            return
        if self._pause is not None:
            self._end_pause(self._pause)
        self._undos.under_way.pop(self.request.token, None)
        self.done = True
        if result is None or isinstance(result, bool):
            self.trouble, self.ended = None, result
        else:
            self.trouble = result
        self.due = math.inf
        if self.waited is not None and not self.waited.done():  # as `wake` does, for speed
            self.waited.set_result(None)
        for callback in self._callbacks:
            callback(self)

    def add_callback(self, then: "Callable[[Release], None]") -> None:
        """Call *then* when it is done, at once if it is already."""
        if self.done:
            then(self)
        else:
            self._callbacks += (then,)

    def wake(self) -> None:
        """Let the waiting caller go on."""
        self.due = math.inf
        if self.waited is not None and not self.waited.done():
            self.waited.set_result(None)
