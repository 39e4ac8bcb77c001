"""A stub of a grantor: it answers what the test wrote down, and notes what was asked, for which token, and when.

It needs no server and decides nothing by itself: a turn comes when the test says so.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from .._core.options import Duration, Options, check_seconds
from .._engine.acquire import Acquisition
from .._engine.context import Context, Together
from .._engine.lease import Hold, Lease
from .._engine.request import Busy, Granted, Queued, Request, ResultCallback
from .._grantors.session import Session
from .._redis.endpoints import Pipelines
from .._redis.pipeline import PendingCall

Answer = int | Literal["queued", "busy", "revoked"] | Exception
"""To `grant`: a fencing token, a place in line, a refusal; to `renew` and `withdraw`: True or False, and "revoked" to
the former.

An exception leaves open whether the request arrived.
"""


@final
@dataclass(frozen=True, slots=True)
class After:
    """An answer that comes *delay*, in seconds or a timedelta, after the question; `math.inf`: never."""

    delay: Duration
    answer: Answer


Verb = Literal["grant", "renew", "withdraw"]


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for *token* at *at* on the session's clock; *ttl* is what the holder wanted."""

    verb: Verb
    token: bytes
    at: float
    ttl: float


@final
class ScriptedGrantor:
    """Answer from three lists, in order. The last answer of a list stands for all later questions; none means yes.

    ::

        grantor = ScriptedGrantor(renewals=[ConnectionError()])
        async with grantor.hold(ttl=30):
            await asyncio.sleep(3600)  # stopped when the lease ends, which nothing renews

    Make it in a running loop. Without *session* it has one of its own, whose pool leads nowhere and whose client would
    retry three times at once; the clock is `Context.clock`, which a test on a jumping loop replaces.

    Attributes:
        asked: Every question, oldest first.
        requests: The request behind each `grant`, oldest first.
        retry_after: Seconds that "queued" and "busy" say the lease in the way has left.
        together: What renews its leases along with those of others; None: each is asked for by itself.
    """

    def __init__(
        self,
        *,
        grants: Sequence[Answer | After] = (),
        renewals: Sequence[Answer | After] = (),
        withdrawals: Sequence[Answer | After] = (),
        name: str = "scripted",
        session: Session | None = None,
    ) -> None:
        self._name = name
        self._grants = list(grants)
        self._renewals = list(renewals)
        self._withdrawals = list(withdrawals)
        self._fences: dict[bytes, int] = {}
        self.session = Session.of(_nowhere()) if session is None else session
        self.asked: list[Asked] = []
        self.requests: list[Request] = []
        self.retry_after = 1.0
        self.together: Together | None = None

    @property
    def name(self) -> str:
        """What it decides over."""
        return self._name

    @property
    def context(self) -> Context:
        """The context whose clock and renewals its leases use."""
        return self.session.context

    @property
    def kind(self) -> str:
        """What messages call it."""
        return "stub"

    def times(self, verb: Verb) -> list[float]:
        """Return when *verb* was asked, oldest first."""
        return [asked.at for asked in self.asked if asked.verb == verb]

    def tokens(self, verb: Verb) -> list[bytes]:
        """Return for which tokens *verb* was asked, oldest first."""
        return [asked.token for asked in self.asked if asked.verb == verb]

    def hand_over(self, fence: int) -> None:
        """Give the newest request its turn, as a notice from the server does."""
        self.requests[-1].grant(fence)

    def asking(
        self,
        *,
        ttl: Duration = 30.0,
        timeout: Duration | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
        renew: bool = True,
        max_hold: Duration | None = None,
    ) -> Acquisition:
        """Return what the engine needs for one acquisition by the running task."""
        options = Options(ttl, timeout, on_lost, renew, max_hold)
        seconds = options.acquire_timeout
        request = Request(options.ttl, 1, wait=seconds is None or seconds > 0)
        return Acquisition(
            self.context,
            self,
            f"stub:{self._name}".encode(),
            request,
            options,
            seconds,
            asyncio.current_task(),
        )

    def hold(
        self,
        *,
        ttl: Duration = 30.0,
        timeout: Duration | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
        renew: bool = True,
        max_hold: Duration | None = None,
    ) -> Hold:
        """Return a block, like `Lock.hold`."""
        return Hold(
            lambda: self.asking(ttl=ttl, timeout=timeout, on_lost=on_lost, renew=renew, max_hold=max_hold).acquire(
                Lease
            ),
            self,
        )

    async def acquire(
        self,
        *,
        ttl: Duration = 30.0,
        timeout: Duration | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
        renew: bool = True,
        max_hold: Duration | None = None,
    ) -> Lease:
        """Return a lease, like `Lock.acquire`; a script that says "busy" fails the test."""
        asking = self.asking(ttl=ttl, timeout=timeout, on_lost=on_lost, renew=renew, max_hold=max_hold)
        lease = await asking.try_acquire(Lease, by_hand=True)
        assert lease is not None, "the script says busy"
        return lease

    async def grant(self, request: Request) -> Granted | Queued | Busy:
        """Answer from `grants`."""
        self.requests.append(request)
        call = _call(self._note("grant", request, request.ttl))
        request.sent(call)
        fence = self._fences.setdefault(request.token, len(self._fences) + 1)
        answer = await _answer(self._grants, fence, self.context.loop)
        request.answered(call)
        request.was_reached()
        if answer == "busy":
            request.busy_for(self.retry_after)
            return Busy()
        if answer == "queued":
            request.busy_for(self.retry_after)
            request.queued(1, call.sent_at, 0)
            return Queued()
        request.left_at(call.sent_at)
        return Granted(answer, call.sent_at)

    def renew(self, request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        """Answer from `renewals`."""
        self._note("renew", request, ttl)
        answer = _answer(self._renewals, True, self.context.loop if thread is None else thread.loop)

        def told(answered: "asyncio.Future[Any]") -> None:
            outcome: Any = _outcome(answered)
            if outcome == "revoked":
                request.was_revoked()
            tell(outcome if isinstance(outcome, Exception) else outcome is True)

        answer.add_done_callback(told)

    def undo(self, request: Request, tell: ResultCallback) -> None:
        """Answer from `withdrawals`."""
        self._note("withdraw", request, request.ttl)
        request.give_up()
        answer = _answer(self._withdrawals, True, self.context.loop)

        def told(answered: "asyncio.Future[bool]") -> None:
            outcome = _outcome(answered)
            if isinstance(outcome, Exception):
                request.undo_unanswered()  # as if it had left, and its reply been lost
            tell(outcome)

        answer.add_done_callback(told)

    def forget(self, request: Request) -> None:
        """Keep nothing of it."""
        self.context.forget(request)

    def obstacle(self, request: Request) -> None:
        """Return nothing, as there are no parts."""
        return

    def fencing_tokens(self, request: Request, fence: int) -> Mapping[str, int]:
        """Return the one there is."""
        return {self.name: fence}

    def _note(self, verb: Verb, request: Request, ttl: float) -> float:
        at = self.context.clock()
        self.asked.append(Asked(verb, request.token, at, ttl))
        return at


def _outcome(answered: "asyncio.Future[bool]") -> bool | Exception:
    error = answered.exception()
    return error if isinstance(error, Exception) else answered.result()


def _call(sent_at: float) -> PendingCall:
    """Return what a request keeps of its way to Redis: when it left. It goes nowhere, so the rest stays unset."""
    call = PendingCall.__new__(PendingCall)
    call.sent_at = sent_at
    call.link = None
    return call


def _nowhere() -> ConnectionPool:
    """Return a pool for its retry policy; nothing here connects."""
    return ConnectionPool(retry=Retry(NoBackoff(), 3))


def _answer(script: list[Answer | After], default: Answer, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[Any]":
    """Return what comes next in *script*, never at once: no network answers within a turn of the loop."""
    answer: Answer | After = default
    if script:
        answer = script.pop(0) if len(script) > 1 else script[0]
    future: asyncio.Future[Any] = loop.create_future()
    if not isinstance(answer, After):
        loop.call_soon(_resolve, future, answer)
    elif answer.delay != math.inf:
        loop.call_later(check_seconds("delay", answer.delay), _resolve, future, answer.answer)
    return future


def _resolve(future: "asyncio.Future[Any]", answer: Answer) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
        future.exception()  # the caller may have left
    else:
        future.set_result(answer)
