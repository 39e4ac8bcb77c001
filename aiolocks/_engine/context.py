"""What all leases and waiters of one client and one event loop share: clock, pipeline, and who holds what.

Everything below the session reaches the rest of it through this alone, and what decides over a name is a `Grantor` to
it: one Redis, or several that vote. The context counts what keeps the session going, and tells it when nothing has for
a while.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, final

from .._core.background import background
from .._core.tokens import fresh_session, tokens_of
from .._redis.endpoints import Pipelines, pipeline_of
from .holdings import Holdings
from .release import Release, Undos
from .request import Answer, Request, ResultCallback

IDLE = 0.5
"""Seconds that a session outlives its last lease and waiter, so that the next one finds it connected."""


lease_clock: Callable[[], float] = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns seconds that go on while the machine is suspended, as the leases on the server do."""


@final
class Context:
    """Made by the session. After its end, leases and primitives may still refer to this."""

    clock: Callable[[], float] = staticmethod(lease_clock)

    def __init__(
        self, pool: Any, loop: asyncio.AbstractEventLoop, *, on_link_lost: Callable[[], None],
        on_connected: Callable[[], None], on_idle: Callable[[], None], renewer_of: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        self.pool = pool
        self.loop = loop
        virtual: Callable[[], float] | None = getattr(loop, "clock", None)
        if virtual is not None:  # of a loop that makes its own time
            self.clock = virtual
        self.id = fresh_session()
        self.closed = False
        self.forked = False
        """This process is a fork of the one that the session belongs to."""
        self.undos = Undos(loop, self.clock)
        self.pipeline = pipeline_of(pool, loop, self.clock, on_link_lost, on_connected)
        self.holdings = Holdings(loop, self.clock, self.schedule_idle_close)
        self.tokens: dict[bytes, Request] = {}
        """What was asked for, from before its first byte leaves until it is given up, lost, or let go."""
        self.new_token = tokens_of(self.id)
        """Returns a token of this session."""
        self.introduction: Any = None
        """Says which process this is; the session's, which sets it."""
        self.renewer: Any = None
        """Renews leases from the loop; the session's, which sets it."""
        self.hand_off: Any = None
        """Hands a lease on; the session's, which sets it."""
        self.renewer_of = renewer_of
        """Returns what looks after a lease that is not just renewed from the loop; None where nothing does."""
        self._on_idle = on_idle
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_used = 0.0
        self._questions = 0

    def forget(self, request: Request) -> None:
        """Note that no caller wants a grant of *request* any more."""
        self.tokens.pop(request.token, None)
        if not self.tokens:
            self.schedule_idle_close()

    def undo(
        self, grantor: "Grantor", request: Request, until: float, then: Callable[[Release], None] | None = None,
        wait: float | None = None,
    ) -> Release:  # fmt: skip
        """Undo a request or lease: from now on a grant of its token is given back; of its parts, as each is undone."""
        self.forget(request)
        return Release(self.undos, grantor, request, until, then, wait)

    @contextlib.contextmanager
    def keep_open(self) -> Generator[None, None, None]:
        """Keep the session while a caller waits for an answer that has to do with no lease."""
        self._questions += 1
        try:
            yield
        finally:
            self._questions -= 1
            self.schedule_idle_close()

    def schedule_idle_close(self) -> None:
        """Have the session told when nothing has been held or awaited for a while from now."""
        if self.tokens:
            return
        self._last_used = self.clock()
        if self._idle_timer is None and not self.loop.is_closed():
            self._idle_timer = self.loop.call_later(IDLE, self._idle)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run *coroutine* in the background; it ends with the session."""
        task = background(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def after_fork(self) -> None:
        """In a forked child: its copies of the leases are the parent's alone."""
        self.forked = True
        self.closed = self.undos.closed = True

    def end(self) -> None:
        """Take nothing more."""
        self.closed = self.undos.closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self.holdings.close()

    def cancel_tasks(self) -> None:
        """End what runs in the background."""
        for task in list(self._tasks):
            task.cancel()

    def _idle(self) -> None:
        self._idle_timer = None
        if self.tokens or self.closed:
            return
        now = self.clock()
        if self._questions or self.undos.keep_session(now):
            self.schedule_idle_close()
            return
        quiet = now - self._last_used
        if quiet + 0.001 < IDLE:  # equivalent: constant, timers are as inexact
            self._idle_timer = self.loop.call_later(IDLE - quiet, self._idle)
        else:
            self._on_idle()


class Grantor(Protocol):
    """Who decides over a name: one Redis, or several that vote. All that waiting and leases need to know of it."""

    @property
    def name(self) -> str:
        """What it decides over, as the caller named it."""
        ...

    @property
    def context(self) -> Context:
        """Whose clock and renewals its leases go by."""
        ...

    @property
    def kind(self) -> str:
        """Such as ``lock``, for messages."""
        ...

    @property
    def together(self) -> "Together | None":
        """What renews its leases along with those of others that have the same; None: each is renewed by itself."""
        ...

    def grant(self, request: Request) -> Awaitable[Answer]:
        """Ask; a waiter's answer may come only with its turn, see `Request.wait_by`. Asking again is harmless, also
        after an exception, which leaves open whether Redis got the request.

        Raises:
            LimitMismatchError: More permits than there are.
            RedisError: Redis could not be asked.
        """
        ...

    def renew(self, request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        """Extend to *ttl* seconds from now at least.

        *tell* is called once: with True if that was done; False if the lease is not ours any more or was revoked, which
        *request* says then; or the exception that leaves it open. *thread* has the pipelines of the calling thread, if
        that is not the session's.
        """
        ...

    def undo(self, request: Request, tell: ResultCallback) -> None:
        """End the lease, or leave the line, or see to it that a request still on its way comes to nothing.

        *tell* is called once: with True if a live lease was ended by this, False if there was none, or the exception
        that leaves it open.
        """
        ...

    def forget(self, request: Request) -> None:
        """Note that no caller wants a grant of *request*, or of a part of it, any more."""

    def obstacle(self, request: Request) -> BaseException | None:
        """Return why a part of *request* is not undone so far, if it has parts and that is known."""
        ...

    def fencing_tokens(self, request: Request, fence: int) -> Mapping[str, int]:
        """Return the fencing token of each name that *request* holds, as it was granted with *fence*."""
        ...


class Together(Protocol):
    """Renews leases of several grantors by one request."""

    @property
    def most(self) -> int:
        """How many at once."""
        ...

    def renew(
        self, leases: Sequence[tuple[Any, Request]], tell: Callable[[Sequence[int] | Exception], None],
        thread: Pipelines | None = None,
    ) -> None:  # fmt: skip
        """Extend each of *leases*, a grantor and a request, to its TTL from now at least.

        *tell* is called once, later: with 1 for each that was extended and 0 for each that its grantor must be asked
        for, or the exception that leaves all of them open. *thread* is as for `Grantor.renew`.
        """
        ...


class Holding(NamedTuple):
    """What the scripts that run commands of a holder's own go by: on one server, one token under each name."""

    script: str
    record: bytes
    """Key of what is kept of the last run."""
    holders: tuple[bytes, ...]
    """The keys in which the lease is."""
    tokens: tuple[bytes, ...]
