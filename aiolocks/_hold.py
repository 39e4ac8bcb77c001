"""One acquisition from request to release: waiting, timeout, cancellation, the loss scope, cleanup.

Written once for every primitive; what differs is the Grantor. Whatever happens between the first byte and the grant,
the request is undone before the caller hears of it, or in the background when Redis does not answer.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from inspect import CO_ASYNC_GENERATOR
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, final

import anyio
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ._commands import LONGEST_WAIT
from ._deadlines import deadline
from ._errors import AcquireTimeoutError
from ._lease import Lease, calling_frame, state_of, unlist
from ._lease_state import LeaseState
from ._options import Options
from ._request import Busy, Granted, Grantor, Queued, Request

if TYPE_CHECKING:
    from ._session import Session

log = logging.getLogger("aiolocks")

GRACE = 1.0
"""Seconds that leaving a block, or an acquire that failed, waits for its undo at most; it goes on in the background."""


@final
class Asking:
    """Everything that one call of `acquire` and its like needs; made by the primitive."""

    __slots__ = ("base", "grantor", "options", "request", "session", "task", "timeout")

    def __init__(
        self, session: "Session", grantor: Grantor, base: bytes, request: Request, options: Options,
        timeout: float | None,
    ) -> None:  # fmt: skip
        self.session = session
        self.grantor = grantor
        self.base = base
        self.request = request
        self.options = options
        self.timeout = timeout
        self.task = asyncio.current_task()


async def obtain(asking: Asking) -> Lease | None:
    """Return the lease, or None when it was not to be had without waiting and the request says not to wait.

    Raises:
        AcquireTimeoutError: Somebody else held it all the time.
        RedisError: Redis could not be asked.
    """
    session, grantor, timeout = asking.session, asking.grantor, asking.timeout
    bound = min(timeout, LONGEST_WAIT) if timeout else LONGEST_WAIT
    try:
        if timeout:
            async with asyncio.timeout(timeout):
                granted = await _granted(asking, bound)
        else:
            granted = await _granted(asking, bound)
    except BaseException as error:
        await _undo(asking, error)
        if not isinstance(error, TimeoutError) or isinstance(error, RedisError):
            raise
        request = asking.request
        if request.retry_after is None:
            raise RedisTimeoutError(
                f"{grantor.kind} {grantor.name!r}: Redis did not answer within {bound:g} s"
            ) from None
        raise timed_out(grantor, request, timeout or 0.0) from None
    if granted is None:
        session.forget(asking.request)
        return None
    state = LeaseState(session, grantor, asking.base, asking.request, granted, asking.options)
    if asking.options.renew:
        session.watchdog.add(state)
    lease = Lease(state, asking.task)
    if asking.task is not None:
        session.ledger.add(asking.task, asking.base, lease)
    return lease


def timed_out(grantor: Grantor, request: Request, timeout: float) -> AcquireTimeoutError:
    return AcquireTimeoutError(
        f"{grantor.kind} {grantor.name!r}: still held by another holder after {timeout:g} s",
        name=grantor.name,
        timeout=timeout,
        retry_after=request.ttl if request.retry_after is None else request.retry_after,
    )


async def _granted(asking: Asking, bound: float) -> Granted | None:
    """Ask, wait for the turn, and see that enough of the lease is left to begin with."""
    session, grantor = asking.session, asking.grantor
    while True:
        request = asking.request
        session.expect(request)
        answer = await _first_answer(asking, bound)
        if isinstance(answer, Busy):
            return None
        granted = answer if isinstance(answer, Granted) else await request.turn
        if _left(asking, granted) >= request.ttl / 2:
            return granted
        # The news took long, or came by a re-check long ago. Asking once more makes the lease whole again.
        request.new_turn()
        try:
            answer = await grantor.grant(request)
        except (RedisError, OSError):
            answer = granted
        granted = answer if isinstance(answer, Granted) else await request.turn
        if _left(asking, granted) > 0:
            return granted
        session.withdraw(grantor, request, session.clock() + request.ttl)
        asking.request = request.again()


def _left(asking: Asking, granted: Granted) -> float:
    return deadline(granted.counted_from, asking.request.ttl) - asking.session.clock()


async def _first_answer(asking: Asking, bound: float) -> Granted | Queued | Busy:
    """Ask until Redis has answered once, as often and as patiently as the user's client would retry."""
    grantor, request = asking.grantor, asking.request
    try:
        return await grantor.grant(request)
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        failures: list[Exception] = [error]

    async def ask() -> Granted | Queued | Busy:
        if len(failures) == 1:  # the first attempt, made above, counts for the policy too
            failures.append(failures[0])
            raise failures[0]
        return Queued() if request.turn.done() else await grantor.grant(request)

    async def failed(error: Exception) -> None:
        failures[0] = error

    if request.turn.done():
        return Queued()
    try:
        async with asyncio.timeout(bound):
            return await asking.session.commands.retry_policy().call_with_retry(ask, failed)
    except TimeoutError as late:
        if isinstance(late, RedisError):
            raise
        raise failures[0] from None


async def _undo(asking: Asking, error: BaseException) -> None:
    session, request = asking.session, asking.request
    withdrawal = session.withdraw(asking.grantor, request, session.clock() + request.ttl)
    if not isinstance(error, GeneratorExit):  # a coroutine that is being destroyed must not wait
        await settle(withdrawal.outcome, min(GRACE, request.ttl))


async def settle(outcome: "asyncio.Future[Any]", bound: float) -> None:
    """Wait until *outcome* is known, for *bound* seconds at most; a cancellation is passed on only afterwards."""
    if outcome.done():
        return
    until = asyncio.get_running_loop().time() + bound
    interruption: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not outcome.done():
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                break
            try:
                await asyncio.wait((outcome,), timeout=left)
            except asyncio.CancelledError as cancelled:
                interruption = cancelled
    if interruption is not None:
        raise interruption


@final
class Body:
    """The body of a block with a lease: stopped when the lease is lost, and the lease released at its end."""

    __slots__ = ("_lease", "_scope", "_state", "_task")

    def __init__(self, lease: Lease, state: LeaseState) -> None:
        self._lease = lease
        self._state = state
        self._task = asyncio.current_task()
        self._scope: anyio.CancelScope | None = None
        if self._task is not None:
            state.session.ledger.enter(self._task, state.base, state.request.permits)
        if state.options.on_lost == "cancel":
            self._scope = anyio.CancelScope()
            self._scope.__enter__()
            state.on_loss = self._scope.cancel
            state.watch_deadline()

    async def leave(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        frame: FrameType,
    ) -> bool:
        """End the block that *frame* leaves: True swallows the cancellation that a loss has sent.

        Raises:
            LeaseLostError: The lease was lost, and the body did not raise an exception of its own.
        """
        stopped, valid = self._end(exc_type, exc, traceback)
        state = self._state
        left = min(GRACE, max(state.deadline - state.session.clock(), 0.0))
        withdrawal = state.session.drop(state)
        ours = exc is None or stopped
        if not valid:
            if state.lost:
                self._report(state.reason, exc, ours)
            return stopped
        if withdrawal is None or not may_wait(frame, exc):
            return stopped
        outcome = withdrawal.outcome
        await settle(outcome, left)
        if not outcome.done() or outcome.exception() is not None:
            log.warning(
                "%s %r: the release could not be confirmed; the lease ends with its TTL of %g s at the latest",
                state.grantor.kind, state.grantor.name, state.request.ttl,
            )  # fmt: skip
        elif outcome.result() is False:
            self._report("the server had given it to somebody else or let it expire", exc, ours)
        return stopped

    def _end(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> tuple[bool, bool]:
        """Close the loss scope and stop renewing; nothing awaits in between. Return (our cancellation, held)."""
        state = self._state
        state.on_loss = None
        valid = state.end()
        unlist(self._lease)
        if self._task is not None:
            state.session.ledger.leave(self._task, state.base, state.request.permits)
        stopped = False
        # A scope can only be left by the task that entered it. Another one that finalizes a generator leaves it behind:
        # without its callback it can never cancel anything again.
        if self._scope is not None and asyncio.current_task() is self._task:
            stopped = bool(self._scope.__exit__(exc_type, exc, traceback))
        return stopped, valid

    def _report(self, reason: str, exc: BaseException | None, ours: bool) -> None:
        state = self._state
        error = state.error(reason)
        if not ours:
            if exc is not None and not isinstance(exc, (asyncio.CancelledError, GeneratorExit)):
                exc.add_note(str(error))
        elif state.options.on_lost == "cancel":
            raise error from None


@final
class Hold:
    """`async with lock.hold(...)`: one acquisition and its block. Use it once at a time."""

    __slots__ = ("_ask", "_body", "_lease")

    def __init__(self, ask: Callable[[], Asking]) -> None:
        self._ask = ask
        self._lease: Lease | None = None
        self._body: Body | None = None

    async def __aenter__(self) -> Lease:
        """Wait for the lease.

        Raises:
            AcquireTimeoutError: Nobody let go in time.
            RuntimeError: This task is inside a block of the same name already, or this object is in use.
            RedisError: Redis could not be asked.

        After an error or a cancellation nothing stays held or queued.
        """
        if self._lease is not None:
            raise RuntimeError("this hold is in use already: call hold() again for another block")
        asking = self._ask()
        lease = await obtain(asking)
        if lease is None:
            raise timed_out(asking.grantor, asking.request, 0.0)
        self._lease = lease
        self._body = Body(lease, state_of(lease))
        return lease

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[Any, Any, bool]:
        """Release the lease.

        Raises:
            LeaseLostError: It was lost, `on_lost` is "cancel", and the body raised no exception of its own.

        Takes at most 1 s, or what is left of the lease. An outer cancellation goes on afterwards.
        """
        return self.leave(exc_type, exc, traceback, calling_frame())

    def leave(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        frame: FrameType,
    ) -> Coroutine[Any, Any, bool]:
        """End the block that *frame* leaves."""
        body, self._body, self._lease = self._body, None, None
        if body is None:
            raise RuntimeError("this hold was left already")
        return body.leave(exc_type, exc, traceback, frame)


def may_wait(frame: FrameType, exc: BaseException | None) -> bool:
    """Whether code in *frame* may await while *exc* passes: not in a coroutine that is being destroyed."""
    return not isinstance(exc, GeneratorExit) or bool(frame.f_code.co_flags & CO_ASYNC_GENERATOR)
