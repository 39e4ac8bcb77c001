"""A stub of a grantor: it answers from the test's lists, and records each question, its token and its time.

It needs no server. A waiter is granted the lease when the test calls `hand_over`.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, final

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
"""Answer to one question.

`grant` is answered by a fencing token, "queued" or "busy"; `renew` by True, False or "revoked"; `withdraw` by True or
False. After an exception the caller does not know whether the request arrived.
"""


@final
@dataclass(frozen=True, slots=True)
class After:
    """An answer that comes *delay* (seconds or a timedelta) after the question. `math.inf` means never."""

    delay: Duration
    answer: Answer


Verb = Literal["grant", "renew", "withdraw"]


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """One question about *token*, at *at* by the session's clock. *ttl* is the TTL in the request."""

    verb: Verb
    token: bytes
    at: float
    ttl: float


class _Options(TypedDict, total=False):
    """The options of one lease, as `ScriptedGrantor.asking` lists them."""

    ttl: Duration
    timeout: Duration | None
    on_lost: Literal["cancel", "flag"]
    renew: bool
    max_hold: Duration | None


@final
class ScriptedGrantor:
    """Answers from three lists, in order. The last answer of a list is repeated. An empty list means yes.

    ::

        grantor = ScriptedGrantor(renewals=[ConnectionError()])
        async with grantor.hold(ttl=30):
            await asyncio.sleep(3600)  # cancelled when the lease ends: nothing renews it

    Make it in a running loop. Without *session* it has its own, whose pool never connects and whose client retries
    three times at once. The clock is `Context.clock`, which a test on a jumping loop replaces.

    Attributes:
        asked: All questions, oldest first.
        requests: The request of each `grant`, oldest first.
        retry_after: Seconds until the present lease ends, reported by "queued" and "busy".
        together: The batch that renews its leases with others. None renews each by itself.
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
        """The name of the lock."""
        return self._name

    @property
    def context(self) -> Context:
        """The context of the session."""
        return self.session.context

    @property
    def kind(self) -> str:
        """The kind in messages."""
        return "stub"

    def times(self, verb: Verb) -> list[float]:
        """Return the times of *verb*, oldest first."""
        return [asked.at for asked in self.asked if asked.verb == verb]

    def tokens(self, verb: Verb) -> list[bytes]:
        """Return the tokens of *verb*, oldest first."""
        return [asked.token for asked in self.asked if asked.verb == verb]

    def hand_over(self, fence: int) -> None:
        """Grant the newest request, as a message from the server would."""
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
        """Return an acquisition by the running task, which has not asked yet."""
        options = Options(ttl, timeout, on_lost, renew, max_hold)
        seconds = options.acquire_timeout
        request = Request(options.ttl, 1, wait=seconds is None or seconds > 0)
        return Acquisition(self.context, self, f"stub:{self._name}".encode(), request, options, seconds)

    def hold(self, **options: Unpack[_Options]) -> Hold:
        """Return a block, like `Lock.hold`."""
        return Hold(lambda: self.asking(**options).acquire(Lease), self)

    async def acquire(self, **options: Unpack[_Options]) -> Lease:
        """Return a lease, like `Lock.acquire`. The answer "busy" fails the test."""
        lease = await self.asking(**options).try_acquire(Lease, by_hand=True)
        assert lease is not None, "the answer was busy"
        return lease

    async def grant(self, request: Request) -> Granted | Queued | Busy:
        """Answer from `grants`."""
        self.requests.append(request)
        call = _call(self._note("grant", request, request.terms.ttl))
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
            request.queued(1, call.sent_at, 0, b"")
            return Queued()
        request.left_at(call.sent_at)
        return Granted(answer, call.sent_at)

    def renew(self, request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        """Answer from `renewals`."""
        self._note("renew", request, ttl)
        answer = _answer(self._renewals, True, self.context.loop if thread is None else thread.loop)

        def report(answered: "asyncio.Future[Any]") -> None:
            outcome: Any = _outcome(answered)
            if outcome == "revoked":
                request.was_revoked()
            tell(outcome if isinstance(outcome, Exception) else outcome is True)

        answer.add_done_callback(report)

    def undo(self, request: Request, tell: ResultCallback) -> None:
        """Answer from `withdrawals`."""
        self._note("withdraw", request, request.terms.ttl)
        request.give_up(self.context.loop)
        answer = _answer(self._withdrawals, True, self.context.loop)

        def report(answered: "asyncio.Future[bool]") -> None:
            outcome = _outcome(answered)
            if isinstance(outcome, Exception):
                request.undo_unanswered()  # as if the reply had been lost
            tell(outcome)

        answer.add_done_callback(report)

    def forget(self, request: Request) -> None:
        """See `Grantor.forget`."""
        self.context.forget(request)

    def obstacle(self, request: Request) -> None:
        """Return None: there are no parts."""

    def fencing_tokens(self, request: Request, fence: int) -> Mapping[str, int]:
        """Return the only one."""
        return {self.name: fence}

    def _note(self, verb: Verb, request: Request, ttl: float) -> float:
        at = self.context.clock()
        self.asked.append(Asked(verb, request.token, at, ttl))
        return at


def _outcome(answered: "asyncio.Future[bool]") -> bool | Exception:
    error = answered.exception()
    return error if isinstance(error, Exception) else answered.result()


def _call(sent_at: float) -> PendingCall:
    """Return a call that was never sent: a request reads only its `sent_at` and `link`."""
    call = PendingCall.__new__(PendingCall)
    call.sent_at = sent_at
    call.link = None
    return call


def _nowhere() -> ConnectionPool:
    """Return a pool that is used only for its retry policy."""
    return ConnectionPool(retry=Retry(NoBackoff(), 3))


def _answer(script: list[Answer | After], default: Answer, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[Any]":
    """Return the next answer of *script*, in a later iteration of the loop, as from a network."""
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
        future.exception()  # the caller may have been cancelled
    else:
        future.set_result(answer)
