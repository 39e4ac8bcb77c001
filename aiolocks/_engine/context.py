"""What all leases and waiters of one client and one event loop share: clock, pipeline, and who holds what.

Everything below the session reaches the rest of it through the context alone. The context counts the reasons to keep
the session open, and notifies the session half a second after the last one is gone.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

from .._core.answers import REPLY_TIMEOUT, as_the_client_would
from .._core.background import background
from .._core.options import Duration
from .._core.replies import RawReply
from .._core.tokens import fresh_session, tokens_of
from .._core.untyped import Coro
from .._core.values import Holder
from .._redis.clients import Pool
from .._redis.endpoints import Pipelines, pipeline_of
from .._redis.scripts import Arguments, Command
from .holdings import Holdings
from .release import Undos
from .request import Answer, Request, ResultCallback

if TYPE_CHECKING:
    from .lease_state import LeaseState, Renewer
    from .renewal import Watchdog

IDLE = 0.5
"""Seconds that a session outlives its last lease and waiter, so that the next one finds it connected."""

lease_clock: Callable[[], float] = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns seconds that continue while the machine is suspended, as the leases on the server do."""


class Services(Protocol):
    """What the session does for its leases and waiters, and when the context calls it."""

    @property
    def watchdog(self) -> "Watchdog":
        """Renews leases in the event loop."""
        ...

    def renewer_of(self, state: "LeaseState") -> "Renewer | None":
        """Return the object that renews or tracks a lease with other options. None if nothing does."""

    async def hand_off(self, state: "LeaseState", ttl: Duration | None) -> str:
        """See `Lease.hand_off`."""
        ...

    async def blockers(self, grantor: "Grantor", request: Request) -> tuple[Holder, ...]:
        """Ask Redis who holds what *request* waits for."""
        ...

    def noted(self, request: Request) -> None:
        """The note of a lease has changed."""

    def connected(self) -> None:
        """There is a new link. Called before the requests that wait for it are sent."""

    def link_lost(self) -> None:
        """A link to a server was lost."""

    def idle(self) -> None:
        """There has been no reason to keep the session open for `IDLE` seconds."""


@final
class Context:
    """Made by the session. Leases and primitives may still refer to it after its end.

    The state is `closed`, and the reasons to keep the session open: a token, an `in_use` block, or an undo. Invariant:
    without a token, the timer of `_check_idle` runs, unless the session was never used or has been idle since.
    """

    clock: Callable[[], float] = staticmethod(lease_clock)

    def __init__(self, pool: Pool, loop: asyncio.AbstractEventLoop, session: Services) -> None:
        self.pool = pool
        self.loop = loop
        self.session = session
        virtual: Callable[[], float] | None = getattr(loop, "clock", None)
        if virtual is not None:  # of a loop that makes its own time
            self.clock = virtual
        self.id = fresh_session()
        self.closed = False
        self.forked = False
        """This process is a fork of the session's process."""
        self.undos = Undos(self)
        self.pipeline = pipeline_of(pool, loop, self.clock, session.link_lost, session.connected)
        self.holdings = Holdings(loop, self.clock, self.schedule_idle_close)
        self.tokens: dict[bytes, Request] = {}
        """Requests from before their first byte leaves until they are given up, lost, or released."""
        self.new_token = tokens_of(self.id)
        """Returns a token of this session."""
        self._uses = 0
        self._last_used = 0.0
        self.idle_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def forget(self, request: Request) -> None:
        """Note that no caller wants a grant of *request* any more."""
        self.tokens.pop(request.token, None)
        if not self.tokens:
            self.schedule_idle_close()

    @contextlib.contextmanager
    def in_use(self) -> Generator[None, None, None]:
        """Keep the session open, for a question that concerns no lease."""
        self._uses += 1
        try:
            yield
        finally:
            self._uses -= 1
            self.schedule_idle_close()

    async def ask(self, key: bytes, command: Command, args: Arguments, *, once: bool = False) -> RawReply:
        """Run a command that concerns no lease at the server of *key*, and return the reply.

        Retries are those of the user's client. Outages and temporary refusals do not use them up, unless *once* is
        true. The command must do no harm if it runs twice.
        """
        pipeline = self.pipeline
        route = pipeline.route(key)
        patience = route.pipeline.patience / 2

        async def ask() -> RawReply:
            nonlocal patience
            patience = min(2 * patience, REPLY_TIMEOUT)  # the last timeout may have been too short
            return await route.ask(command, args, patience)

        with self.in_use():
            return await as_the_client_would(pipeline.retry_policy(once=once), ask)

    def schedule_idle_close(self) -> None:
        """Notify the session when nothing has been held or awaited for `IDLE` seconds from now."""
        if self.tokens or self.forked:
            return
        self._last_used = self.clock()
        if self.idle_timer is None and not self.loop.is_closed():
            self.idle_timer = self.loop.call_later(IDLE, self._check_idle)

    def spawn(self, coroutine: Coro[None]) -> None:
        """Run *coroutine* in the background. It ends with the session."""
        task = background(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def after_fork(self) -> None:
        """In a forked child: the leases are the parent's alone (L9)."""
        self.forked = True
        self.closed = self.undos.closed = True

    def end(self) -> None:
        """Accept no more requests, and cancel the background tasks."""
        self.closed = self.undos.closed = True
        if self.idle_timer is not None:
            self.idle_timer.cancel()
            self.idle_timer = None
        self.holdings.close()
        for task in list(self._tasks):
            task.cancel()

    def _check_idle(self) -> None:
        self.idle_timer = None
        if self.tokens or self.closed:
            return
        now = self.clock()
        # W14: until each undo is answered or pointless. All are asked, because each also notes when its request was
        # found to be answered, and `any` would stop at the first.
        undoing = [release.keeps_session(now) for release in self.undos.under_way.values()]
        if self._uses or any(undoing):
            self._last_used = now
        left = max(self._last_used, self.undos.last_begun) + IDLE - now
        if left > 0.001:  # equivalent: comparison + constant, timers are as inexact
            self.idle_timer = self.loop.call_later(left, self._check_idle)
        else:
            self.session.idle()


class Grantor(Protocol):
    """Who decides over a name: one Redis, or several that vote. All that waiting and leases need to know of it."""

    @property
    def name(self) -> str:
        """What it decides over, as the caller named it."""
        ...

    @property
    def context(self) -> Context:
        """The context whose clock and session its leases use."""
        ...

    @property
    def kind(self) -> str:
        """Such as ``lock``, for messages."""
        ...

    @property
    def together(self) -> "Together | None":
        """The batch that renews its leases together with others. None means that each is renewed singly."""

    def grant(self, request: Request) -> Awaitable[Answer]:
        """Ask for *request*. A waiter's answer may come only with its grant; see `Request.wait_by`.

        Asking again is harmless (P6), also after an exception, when it is unknown whether Redis got the request.
        """
        ...

    def renew(self, request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        """Extend the lease to at least *ttl* seconds from now.

        *tell* is called once. True means that this was done. False means that the lease is not ours any more, or was
        revoked, which *request* then says. After an exception it is unknown. *thread* has the pipelines of the calling
        thread, if that is not the session's.
        """

    def undo(self, request: Request, tell: ResultCallback) -> None:
        """End the lease, leave the queue, and make a request that is still on its way have no effect (P7).

        *tell* is called once. True means that this ended a live lease. False means that there was none. After an
        exception it is unknown.
        """

    def forget(self, request: Request) -> None:
        """Note that no caller wants a grant of *request*, or of a part of it, any more."""

    def obstacle(self, request: Request) -> BaseException | None:
        """Return why a part of *request* is not undone yet, if it has parts and the reason is known."""

    def fencing_tokens(self, request: Request, fence: int) -> Mapping[str, int]:
        """Return the fencing token of each name that *request* holds, given that *fence* was granted."""
        ...


class Together(Protocol):
    """Renews leases of several grantors by one request."""

    @property
    def most(self) -> int:
        """Maximum number of leases at once."""
        ...

    def renew(
        self, leases: Sequence[tuple[Any, Request]], tell: Callable[[Sequence[int] | Exception], None],
        thread: Pipelines | None = None,
    ) -> None:  # fmt: skip
        """Extend each of *leases*, pairs of a grantor and a request, to at least its TTL from now (W21).

        *tell* is called once, later. 1 means that a lease was extended, 0 that its grantor must be asked for it alone.
        After an exception it is unknown for all of them. *thread* is as for `Grantor.renew`.
        """


class Guarding(NamedTuple):
    """What the script needs that runs a holder's commands on one server, if the lease is still the current one."""

    script: str
    record: bytes
    """Key of the record of the last run."""
    holders: tuple[bytes, ...]
    """The keys in which the lease is."""
    tokens: tuple[bytes, ...]
    """One for each name."""
