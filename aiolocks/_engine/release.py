"""The undoing of one request or lease: tried until the server has answered, in the background if need be."""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol, final

import anyio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core.answers import is_worth_retry
from .._core.overdue_timer import OverdueTimer
from .._core.timing import retry_delay
from .request import Request, ResultCallback

_NEVER = math.inf

GRACE = 1.0
"""Seconds that leaving a block, or an acquire that failed, waits for its undo at most; it goes on in the background."""

MOST_UNAWAITED = 4096
"""Releases under way in one session from which on leaving a block waits for its own, whatever it was told: a megabyte
or so of what Redis has not read."""

LONGEST_RELEASE = 10.0
"""Seconds that a release by hand waits for its answer, if the lease lasts that long; it goes on in the background."""


class Undoes(Protocol):
    """What is asked here of a Grantor."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...

    def undo(self, request: Request, tell: ResultCallback) -> None:
        """Try once to undo *request*; *tell* is called once, see `Grantor.undo`."""

    def forget(self, request: Request) -> None:
        """Note that no caller wants a grant of *request*, or of a part of it, any more."""

    def obstacle(self, request: Request) -> BaseException | None:
        """Return why *request* is not undone yet, if it has parts and they show why."""
        ...


@final
class Undos:
    """All of one session that are not confirmed yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.loop = loop
        self.clock = clock
        self.closed = False
        self.under_way: dict[bytes, Release] = {}
        """By token."""
        self.pausing: dict[tuple[str, str], dict[Release, None]] = {}
        """Those of them that failed and are to be tried again later, by kind and name."""
        self.waits = OverdueTimer(loop, clock, lambda: self.under_way.values(), Release.wake)
        """Who waits for one of them, and until when at most."""

    def keep_session(self, now: float) -> bool:
        """Whether the session must go on for one of them."""
        return any(release.keeps_session(now) for release in self.under_way.values())

    def take_more(self) -> bool:
        """Whether one more may be left alone, as there are not too many."""
        return len(self.under_way) < MOST_UNAWAITED

    def go_ahead(self, kind: str, name: str) -> None:
        """Try at once what waits to be tried again, before anything else is asked about that name.

        Or a session would find its own lease in the way, that it has released.
        """
        for release in list(self.pausing.get((kind, name), ())):
            release.try_now()

    def go_first(self) -> None:
        """The same for all names, over a new link: what was to be sent behind them waits for it too."""
        for releases in list(self.pausing.values()):
            for release in list(releases):
                release.try_now()

    def begun_since(self, at: float) -> bool:
        """Whether one of them began after *at*."""
        # equivalent: comparison, at that instant either is right
        return any(release.begun > at for release in self.under_way.values())

    def close(self, error: Exception) -> None:
        """Finish all with what stands in their way, or with *error*; those that come later as well."""
        self.closed = True
        for release in list(self.under_way.values()):
            release.finish(release.obstacle() or error)
        self.waits.close()


@final
class Release:
    """Retried until confirmed, or pointless after *until*; the session lives for as long; see `keeps_session`.

    Once `done`, either `trouble` says why it could not be confirmed, or `ended` what the server answered: True when
    it ended a live lease, False when there was none, and None when there was none after an earlier attempt whose
    answer was lost: that one may have ended it.

    Args:
        until: Local time after which a further try is pointless.
        then: Called when it is done.
        wait: Seconds for which a caller waits for it at most; left out, none does at first. See `waited`.
    """

    on_refused: Callable[[], None]
    """Called when the server refuses it. Only a release of a part has it."""

    __slots__ = (
        "_failures", "_grantor", "_keeps_until", "_pause", "_request", "_then", "_under_way", "_undos", "_until",
        "begun", "done", "due", "ended", "on_refused", "trouble", "waited",
    )  # fmt: skip

    def __init__(
        self, undos: Undos, grantor: Undoes, request: Request, until: float,
        then: "Callable[[Release], None] | None" = None, wait: float | None = None,
    ) -> None:  # fmt: skip
        self._undos = undos
        self._grantor = grantor
        self._request = request
        self._until = until
        self._then = then
        self._failures = 0
        self._pause: asyncio.TimerHandle | None = None
        self.begun = now = undos.clock()
        self.due = _NEVER
        """Until when a caller waits."""
        self.waited: asyncio.Future[None] | None = None
        """For the caller: resolved when it is done, or when the time to wait is over. Cancelling it stops nothing."""
        if wait is not None:
            self.waited = undos.loop.create_future()
            self.due = until if until < now + wait else now + wait
        self._keeps_until = until
        self._under_way = False
        if request.unanswered:
            self._under_way = True
            self._keeps_until = min(until, self.begun + request.ttl)
        self.done = False
        self.ended: bool | None = None
        self.trouble: BaseException | None = None
        if undos.closed or undos.loop.is_closed():
            grantor.forget(request)  # also of its parts: nothing undoes them
            self.finish(RedisConnectionError("the session has ended"))
            return
        undos.under_way[request.token] = self
        if self.due < undos.waits.next_due:
            undos.waits.arm(self.due, now)
        grantor.undo(request, self)

    def wait(self, until: float) -> "asyncio.Future[None]":
        """Return `waited`, begun anew for one caller that waits until then at most."""
        undos = self._undos
        waited = self.waited = undos.loop.create_future()
        if self.done:
            waited.set_result(None)
        else:
            self.due = until
            if until < undos.waits.next_due:
                undos.waits.arm(until, undos.clock())
        return waited

    async def settle(self, until: float) -> None:
        """Wait until it is done, or *until* has come; a cancellation is passed on only afterwards.

        Shielded: the cancellation of a scope around the task may have been seen already, and is not to be seen again.
        """
        interruption: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):  # costs as much as all the rest, so only where it is needed
            while not self.done and not self.refused and self._undos.clock() < until:
                try:
                    await self.wait(until)
                except asyncio.CancelledError as cancelled:
                    interruption = cancelled
        if interruption is not None:
            raise interruption

    def keeps_session(self, now: float) -> bool:
        """Whether the session must go on for this.

        A request that may still be on its way is worth an undo for long, but not a connection for longer than the
        lease would last that it asks for; from now on, if it was answered meanwhile.
        """
        if self._under_way and not self._request.unanswered:
            self._under_way = False
            self._keeps_until = min(self._until, now + self._request.ttl)
        return now < self._keeps_until

    def outcome(self) -> bool | None:
        """Return what the server answered.

        Raises:
            RedisError: It is not confirmed, or not yet.
        """
        trouble = self.obstacle()
        if trouble is not None:
            raise trouble
        if not self.done:
            raise RedisTimeoutError("Redis has not confirmed it in time")
        return self.ended

    @property
    def refused(self) -> bool:
        """Whether the server has answered with an error that the next try will most likely meet again.

        If it has parts: whether so many servers have answered so that the others are not enough.
        A caller gets the error at once. The retries go on in the background, as an administrator can grant the missing
        right or free the disk.
        """
        return isinstance(trouble := self.obstacle(), Exception) and not is_worth_retry(trouble)

    def obstacle(self) -> BaseException | None:
        """Return why it is not confirmed yet, if that is known. If it has parts: why too few of them are."""
        if self.done or self.trouble is not None:
            return self.trouble
        return self._grantor.obstacle(self._request)

    def try_now(self) -> None:
        """Try again, though the pause before that is not over."""
        self._end_pause()
        if not self.done:
            self._grantor.undo(self._request, self)

    def _begin_pause(self, seconds: float) -> None:
        undos = self._undos
        self._pause = undos.loop.call_later(seconds, self._try)
        undos.pausing.setdefault((self._grantor.kind, self._grantor.name), {})[self] = None

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            key = self._grantor.kind, self._grantor.name
            pausing = self._undos.pausing[key]
            del pausing[self]
            if not pausing:
                del self._undos.pausing[key]

    def _try(self) -> None:
        self._failures += 1
        self.try_now()

    def __call__(self, ended: bool | Exception) -> None:
        """Take the outcome of one try."""
        if self.done:
            return
        if isinstance(ended, bool):
            self.finish(None if self._request.silences and not ended else ended)
            return
        self.trouble = error = ended
        pause = retry_delay(self._request.ttl, self._failures + 1)
        if self._undos.clock() + pause >= self._until:
            self.finish(error)
        elif self._pause is None:
            self._begin_pause(pause)
        if self.refused:
            self.wake()
            if hasattr(self, "on_refused"):
                self.on_refused()

    def finish(self, result: bool | BaseException | None) -> None:
        if self.done:
            return
        self._end_pause()
        self._undos.under_way.pop(self._request.token, None)
        self.done = True
        if result is None or isinstance(result, bool):
            self.trouble, self.ended = None, result
        else:
            self.trouble = result
        self.wake()
        if self._then is not None:
            self._then(self)

    def tell_too(self, then: "Callable[[Release], None]") -> None:
        """Call *then* as well when it is done."""
        first = self._then

        def both(release: Release) -> None:
            if first is not None:
                first(release)
            then(release)

        self._then = both

    def wake(self) -> None:
        """Let the caller that waits go on."""
        self.due = _NEVER
        if self.waited is not None and not self.waited.done():
            self.waited.set_result(None)
