"""One acquisition from request to release: waiting, timeout, cancellation, the loss scope, cleanup.

Written once for every primitive; what differs is the Grantor. Whatever happens between the first byte and the grant,
the request is undone before the caller hears of it, or in the background when Redis does not answer.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import CoroutineType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, cast, final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ._body import GRACE, Body, settle
from ._commands import LONGEST_WAIT
from ._errors import AcquireTimeoutError
from ._lease import Lease, as_coroutine, calling_frame, state_of
from ._lease_state import LeaseState
from ._options import Options
from ._request import Answer, Busy, Granted, Grantor, Queued, Request

if TYPE_CHECKING:
    from ._session import Session


@final
class Asking:
    """Everything that one call of `acquire` and its like needs; made by the primitive."""

    __slots__ = ("base", "grantor", "must", "options", "request", "session", "task", "timeout", "trouble")

    def __init__(
        self, session: "Session", grantor: Grantor, base: bytes, request: Request, options: Options,
        timeout: float | None, task: "asyncio.Task[Any] | None",
    ) -> None:  # fmt: skip
        self.session = session
        self.grantor = grantor
        self.base = base
        self.request = request
        self.options = options
        self.timeout = timeout
        self.must = False
        """Whether not to get it is an error."""
        self.trouble: Exception | None = None
        """Why Redis could not be asked, when it was last tried."""
        self.task = task


async def obtain(asking: Asking) -> Lease | None:
    """Return the lease, or None when it was not to be had without waiting, and need not be.

    Raises:
        AcquireTimeoutError: Somebody else held it all the time, and the caller must have it.
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
        if request.retry_after is None and asking.trouble is not None:
            raise asking.trouble from None
        if request.retry_after is None:
            raise RedisTimeoutError(
                f"{grantor.kind} {grantor.name!r}: Redis did not answer within {bound:g} s"
            ) from None
        raise timed_out(grantor, request, timeout or 0.0) from None
    if granted is None:
        if asking.request.unanswered:  # an attempt whose answer was lost may still reach Redis
            session.withdraw(grantor, asking.request, session.clock() + asking.request.ttl)
        session.forget(asking.request)
        if asking.must:
            raise timed_out(grantor, asking.request, 0.0)
        return None
    state = LeaseState(session, grantor, asking.base, asking.request, granted, asking.options)
    if asking.options.renew:
        try:
            session.keeper(asking.options).add(state)
        except BaseException as error:
            await _undo(asking, error)
            raise
    lease = Lease(state, asking.task)
    if asking.task is not None:
        session.ledger.add(asking.task, asking.base, lease)
    return lease


async def obtain_body(asking: Asking) -> Body:
    """Begin a block with the lease, which it must have; raises as `obtain` does."""
    asking.must = True
    lease = cast("Lease", await obtain(asking))
    return Body(lease, state_of(lease), asking.task)


def timed_out(grantor: Grantor, request: Request, timeout: float) -> AcquireTimeoutError:
    state = "too few permits are free" if grantor.kind == "semaphore" else "held by another holder"
    when = f"still {state} after {timeout:g} s" if timeout else state
    return AcquireTimeoutError(
        f"{grantor.kind} {grantor.name!r}: {when}",
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
        until = session.clock() + bound
        try:
            answer: Answer = await grantor.grant(request)
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            answer = await _ask_again(asking, error, until)
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
        if isinstance(answer, Busy):
            return None
        granted = answer if isinstance(answer, Granted) else await request.turn
        if _left(asking, granted) > 0:
            return granted
        session.withdraw(grantor, request, session.clock() + request.ttl)
        asking.request = request.again()


def _left(asking: Asking, granted: Granted) -> float:
    return granted.counted_from + asking.request.valid_for - asking.session.clock()


async def _ask_again(asking: Asking, error: Exception, until: float) -> Answer:
    """Ask until Redis has answered once, as often and as patiently as the user's client would retry."""
    grantor, request = asking.grantor, asking.request
    failures: list[Exception] = [error]
    asking.trouble = error

    async def ask() -> Answer:
        if len(failures) == 1:  # the first attempt counts for the policy too
            failures.append(failures[0])
            raise failures[0]
        return Queued() if request.turn.done() else await grantor.grant(request)

    async def failed(error: Exception) -> None:
        failures[0] = asking.trouble = error

    if request.turn.done():
        return Queued()
    try:
        async with asyncio.timeout(until - asking.session.clock()):
            return await asking.session.commands.retry_policy().call_with_retry(ask, failed)
    except TimeoutError as late:
        if isinstance(late, RedisError):
            raise
        raise failures[0] from None


async def _undo(asking: Asking, error: BaseException) -> None:
    session, request = asking.session, asking.request
    withdrawal = session.withdraw(asking.grantor, request, session.clock() + request.ttl)
    # A coroutine that is being destroyed must not wait; and where Redis has just been silent it is of no use.
    silent = isinstance(error, (RedisConnectionError, RedisTimeoutError, OSError)) and not request.reached
    if not isinstance(error, GeneratorExit) and not silent:
        await settle(session, withdrawal, min(GRACE, request.ttl), shielded=True)


@final
class Hold:
    """`async with lock.hold(...)`: one acquisition and its block. Use it once at a time."""

    __slots__ = ("_ask", "_body", "_in_use")

    def __init__(self, ask: Callable[[], Asking]) -> None:
        self._ask = ask
        self._in_use = False
        self._body: Body | None = None

    async def __aenter__(self) -> Lease:
        """Wait for the lease.

        Raises:
            AcquireTimeoutError: Nobody let go in time.
            RuntimeError: This task is inside a block of the same name already, or this object is in use.
            RedisError: Redis could not be asked.

        After an error or a cancellation nothing stays held or queued.
        """
        if self._in_use:
            raise RuntimeError("this hold is in use already: call hold() again for another block")
        asking = self._ask()
        self._in_use = True
        try:
            self._body = await obtain_body(asking)
        except BaseException:
            self._in_use = False
            raise
        return self._body.lease

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> "CoroutineType[Any, Any, None]":
        """Release the lease.

        Raises:
            LeaseLostError: It was lost, `on_lost` is "cancel", and the body raised no exception of its own.

        Takes at most 1 s, or what is left of the lease. An outer cancellation goes on afterwards.
        """
        return as_coroutine(self.leave(exc_type, exc, traceback, calling_frame()))

    def leave(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        frame: FrameType,
    ) -> Coroutine[Any, Any, None]:
        """End the block that *frame* leaves."""
        body, self._body = self._body, None
        if body is None:
            raise RuntimeError("this hold was left already")
        self._in_use = False
        return body.leave(exc_type, exc, traceback, frame)
