"""One acquisition from request to release: waiting, timeout, cancellation, the loss scope, cleanup.

Written once for every primitive; what differs is the Grantor. Whatever happens between the first byte and the grant,
the request is undone before the caller hears of it, or in the background when Redis does not answer.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import CoroutineType, FrameType, TracebackType
from typing import Any, Literal, Protocol, cast, final, overload

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ._blocks import Entry, current_task
from ._body import GRACE, Body, settle
from ._commands import LONGEST_WAIT, UNCERTAIN
from ._errors import AcquireTimeoutError
from ._lease import Lease, as_coroutine, calling_frame, state_of
from ._lease_state import LeaseState
from ._options import Duration, Unset
from ._request import Answer, Busy, Granted, Grantor, Queued, Replicating, Request


@overload
async def obtain(
    state: LeaseState, *, must: Literal[True], by_hand: bool = False, block: Entry | None = None
) -> Lease: ...
@overload
async def obtain(state: LeaseState, *, must: Literal[False], by_hand: bool = False) -> Lease | None: ...
async def obtain(state: LeaseState, *, must: bool, by_hand: bool = False, block: Entry | None = None) -> Lease | None:
    """Return the lease, or None if it is busy and *must* is false.

    One taken *by_hand* is the caller's to release, also by the name. If it is for a *block*, that begins.

    Raises:
        AcquireTimeoutError: Somebody else held it all the time, and the caller must have it.
        RedisError: Redis could not be asked.
    """
    session, request = state.session, state.request
    granted: Granted | None
    try:
        if state.timeout:
            async with asyncio.timeout(state.timeout):
                granted = await (wait_replicated(state) if state.options.replicas else wait_granted(state))
        elif state.options.replicas:
            granted = await wait_replicated(state)
        else:  # begun here, since most are granted at once, and then one coroutine less is on its way
            session.tokens[request.token] = request
            try:
                answer = await state.grantor.grant(request)
            except UNCERTAIN as error:
                answer = await _ask_again(state, error)
            granted = (
                answer if isinstance(answer, Granted) and _fresh(answer, state) else await wait_granted(state, answer)
            )
        if granted is not None:
            state.begin(granted, session.clock())
    except BaseException as error:
        await _undo(state, error)
        if not isinstance(error, TimeoutError) or isinstance(error, RedisError):
            raise
        raise _too_late(state) from None
    if granted is None:
        if state.request.unanswered:  # an attempt whose answer was lost may still reach Redis
            session.withdraw(state.grantor, state.request, session.clock() + state.request.undo_for)
        session.forget(state.request)
        if must:
            raise timed_out(state.grantor, state.request, 0.0)
        return None
    lease = Lease(state)
    task = state.task
    if by_hand and task is not None:
        session.ledger.add(task, state, lease)
    else:
        state.task = None
    if block is not None:
        block.open(Body(lease, state, block.task, block.before))
    return lease


def _too_late(state: LeaseState) -> Exception:
    """Return what to raise when the caller's time is over: what is known of why."""
    request, grantor = state.request, state.grantor
    if request.retry_after is not None:
        return timed_out(grantor, request, state.timeout or 0.0)
    return (
        state.trouble
        or request.trouble
        or RedisTimeoutError(f"{grantor.kind} {grantor.name!r}: Redis did not answer within {_bound(state):g} s")
    )


def _bound(state: LeaseState) -> float:
    """Return the seconds that a request which is not in the queue yet may stay unanswered."""
    return min(state.timeout, LONGEST_WAIT) if state.timeout else LONGEST_WAIT


def timed_out(grantor: Grantor, request: Request, timeout: float) -> AcquireTimeoutError:
    state = "too few permits are free" if grantor.kind == "semaphore" else "held by another holder"
    when = f"still {state} after {timeout:g} s" if timeout else state
    return AcquireTimeoutError(
        f"{grantor.kind} {grantor.name!r}: {when}",
        name=grantor.name,
        timeout=timeout,
        retry_after=request.ttl if request.retry_after is None else request.retry_after,
    )


async def wait_granted(state: LeaseState, answer: Answer | None = None) -> Granted | None:
    """Ask, unless there is an *answer*; wait for the turn, and see that enough of the lease is left to begin with."""
    session, grantor = state.session, state.grantor
    while True:
        request = state.request
        if answer is None:
            session.tokens[request.token] = request  # from now on a grant of this token is somebody's
            try:
                answer = await grantor.grant(request)
            except UNCERTAIN as error:
                answer = await _ask_again(state, error)
        if isinstance(answer, Granted):
            granted = answer
        elif isinstance(answer, Busy):
            return None
        else:
            granted = await request.turn
        if _fresh(granted, state):
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
        if granted.counted_from + request.valid_for > session.clock():
            return granted
        session.withdraw(grantor, request, session.clock() + request.undo_for)
        state.request = request.again()
        answer = None


def _fresh(granted: Granted, state: LeaseState) -> bool:
    """Whether so much of the lease is left that work can begin."""
    return granted.counted_from + state.request.valid_for - state.session.clock() >= state.request.ttl / 2


async def wait_replicated(state: LeaseState) -> Granted | None:
    """Do as `wait_granted` does, and see that enough replicas have what was granted."""
    if await wait_granted(state) is None:
        return None
    grantor, request, replicas = state.grantor, state.request, state.options.replicas
    request.retry_after = None  # from now on nobody else is in the way
    state.trouble = RedisTimeoutError(
        f"{grantor.kind} {grantor.name!r}: not known to be on {replicas} replicas after {state.timeout or 0:g} s"
    )
    return await cast("Replicating", grantor).replicate(request, replicas)


async def _ask_again(state: LeaseState, error: Exception) -> Answer:
    """Ask until Redis has answered once, as often and as patiently as the user's client would retry."""
    session, grantor, request = state.session, state.grantor, state.request
    failures: list[Exception] = [error]
    state.trouble = error

    async def ask() -> Answer:
        if len(failures) == 1:  # the first attempt counts for the policy too
            failures.append(failures[0])
            raise failures[0]
        return Queued() if request.turn.done() else await grantor.grant(request)

    async def failed(error: Exception) -> None:
        failures[0] = state.trouble = error

    if request.turn.done():
        return Queued()
    now = session.clock()
    left = _bound(state) - (now - (now if request.asked_at is None else request.asked_at))
    try:
        async with asyncio.timeout(left):
            policy = session.commands.retry_policy(once=not request.wait)
            return await policy.call_with_retry(ask, failed)
    except TimeoutError as late:
        if isinstance(late, RedisError):
            raise
        raise failures[0] from None


async def _undo(state: LeaseState, error: BaseException) -> None:
    session, request = state.session, state.request
    withdrawal = session.withdraw(state.grantor, request, session.clock() + request.undo_for)
    # A coroutine that is being destroyed must not wait; and where Redis has just been silent it is of no use.
    silent = isinstance(error, UNCERTAIN) and not request.reached
    if not isinstance(error, GeneratorExit) and not silent:
        await settle(session, withdrawal, session.clock() + min(GRACE, request.ttl))


@final
class Hold:
    """`async with lock.hold(...)`: one acquisition and its block. Use it once at a time."""

    __slots__ = ("_body", "_in_use", "_take")

    def __init__(self, take: Callable[[], Coroutine[Any, Any, Lease]]) -> None:
        self._take = take
        self._in_use = False
        self._body: Body | None = None

    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """Wait for the lease.

        Raises:
            AcquireTimeoutError: Nobody let go in time.
            RuntimeError: This task is inside a block of the same name already, or this object is in use.
            RedisError: Redis could not be asked.

        After an error or a cancellation nothing stays held or queued.
        """
        if self._in_use:
            raise RuntimeError("this hold is in use already: call hold() again for another block")
        task = current_task()  # in whichever task this is awaited, see `asyncio.wait_for` before Python 3.12
        return as_coroutine(self._enter(task, 0 if task is None else task.cancelling()))

    async def _enter(self, task: "asyncio.Task[Any] | None", before: int) -> Lease:
        if self._in_use:
            raise RuntimeError("this hold is in use already: call hold() again for another block")
        self._in_use = True
        try:
            lease = await self._take()
            self._body = Body(lease, state_of(lease), task, before)
        finally:
            self._in_use = self._body is not None
        return lease

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> "CoroutineType[Any, Any, None]":
        """Release the lease.

        Raises:
            LeaseLostError: It was lost, `on_lost` is "cancel", and the body raised no exception of its own.

        Takes at most 1 s, or what is left of the lease. An outer cancellation goes on afterwards.
        """
        return self.leave(exc, calling_frame())

    def leave(self, exc: BaseException | None, frame: FrameType) -> "CoroutineType[Any, Any, None]":
        """End the block that *frame* leaves."""
        body, self._body = self._body, None
        if body is None:
            raise RuntimeError("this hold was left already")
        self._in_use = False
        return as_coroutine(body.leave(exc, frame))


class _Primitive(Protocol):
    def _acquire(self, timeout: Duration | Unset | None, permits: int) -> Coroutine[Any, Any, Lease]: ...

    def _hold(self, timeout: Duration | Unset | None, permits: int) -> Hold: ...


@final
class Acquiring(Coroutine[Any, Any, Lease]):
    """What `acquire()` returns: ``lease = await lock.acquire(timeout=5)``, or ``async with lock.acquire(timeout=5):``.

    A coroutine like any other, for tasks, `gather` and `wait_for`; or a block, as `hold()` returns it.
    """

    __slots__ = ("__weakref__", "_by_hand", "_hold", "_permits", "_primitive", "_timeout")

    def __init__(self, primitive: _Primitive, timeout: Duration | Unset | None, permits: int) -> None:
        self._by_hand = primitive._acquire(timeout, permits)  # made at once: Python warns if nobody awaits it
        self._primitive, self._timeout, self._permits = primitive, timeout, permits
        self._hold: Hold | None = None

    def __await__(self) -> Generator[Any, Any, Lease]:
        return self._by_hand.__await__()

    def send(self, value: Any) -> Any:
        return self._by_hand.send(value)

    def throw(self, *exception: Any) -> Any:
        return self._by_hand.throw(*exception)

    def close(self) -> None:
        self._by_hand.close()

    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """Begin a block; see `Hold`."""
        if self._hold is None:
            self._by_hand.close()  # it was not begun
            self._hold = self._primitive._hold(self._timeout, self._permits)
        return self._hold.__aenter__()

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> "CoroutineType[Any, Any, None]":
        if self._hold is None:
            raise RuntimeError("this block was not entered")
        return self._hold.leave(exc, calling_frame())
