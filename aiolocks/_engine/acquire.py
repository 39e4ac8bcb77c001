"""Acquiring: asking, waiting, timeout, cancellation, and the undo of what came to nothing.

Written once for every primitive; what differs is the Grantor. Whatever happens between the first byte and the grant,
the request is undone before the caller hears of it, or in the background when Redis does not answer.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import Literal, TypeVar, cast, overload

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core import events
from .._core.answers import LONGEST_WAIT, UNCERTAIN
from .._core.doing import Doing
from .._core.errors import AcquireTimeoutError
from .._redis.clients import place_of
from .closing import closed_error
from .context import Grantor, Replicating
from .lease_state import Entry, LeaseState
from .release import GRACE
from .request import Answer, Busy, Granted, Queued, Request, WithdrawnError

L = TypeVar("L")

_DEBUG = logging.DEBUG

_logs = events.log.isEnabledFor


@overload
async def take(
    state: LeaseState, handle: Callable[[LeaseState], L], *, must: Literal[True], by_hand: bool = False,
    block: Entry | None = None,
) -> L: ...  # fmt: skip
@overload
async def take(
    state: LeaseState, handle: Callable[[LeaseState], L], *, must: Literal[False], by_hand: bool = False
) -> L | None: ...
async def take(
    state: LeaseState, handle: Callable[[LeaseState], L], *, must: bool, by_hand: bool = False,
    block: Entry | None = None,
) -> L | None:  # fmt: skip
    """Begin the lease of *state*, and return its *handle*; None if it is busy and *must* is false.

    One taken *by_hand* is the caller's to release, also by the name. If it is for a *block*, that begins.

    Raises:
        AcquireTimeoutError: Another holder had it all the time, and *must* is true.
        RedisError: Redis could not be asked.
        RuntimeError: The manager that made the primitive is closed.
    """
    context, request, closing = state.context, state.request, state.closing
    granted: Granted | None
    waiting = None if closing is None else closing.begin(state.grantor.kind, state.grantor.name)
    if events.listeners or _logs(_DEBUG):  # looked at for each, as the level may change at any time
        state.tell_asked()
    try:
        if state.timeout:
            async with asyncio.timeout(state.timeout):
                # defect: W13-asked
                granted = await (wait_replicated(state) if state.options.replicas else wait_granted(state))
        elif state.options.replicas:  # defect: W13-asked
            granted = await wait_replicated(state)
        else:  # begun here, since most are granted at once, and then one coroutine less is on its way
            context.tokens[request.token] = request  # defect: W5-awaited
            answer: Answer | None
            try:
                answer = await state.grantor.grant(request)
            except WithdrawnError:  # while it was in line, which it may have awaited by the same future
                answer = None
                _take_fresh_token(state)
            except UNCERTAIN as error:
                answer = await _ask_again_or_anew(state, error)
            granted = (
                answer if isinstance(answer, Granted) and _fresh(answer, state) else await wait_granted(state, answer)
            )
        if granted is not None:
            state.begin(granted, context.clock())
    except BaseException as error:
        closed = closing is not None and closing.end(waiting, error)
        if state.acquisition or events.listeners:
            _tell_in_vain(state, error)
        await _undo(state, error)
        if closed:
            raise closed_error(state.grantor.kind, state.grantor.name) from None
        late = isinstance(error, TimeoutError) and not isinstance(error, RedisError)
        with Doing(f"acquiring {state.what}"):
            if late:
                raise _too_late(state) from None
            raise
    if closing is not None:
        closing.end(waiting, None)
    if granted is None:
        if state.request.unanswered:  # an attempt whose answer was lost may still reach Redis
            context.undo(state.grantor, state.request, context.clock() + state.request.undo_for)
        state.grantor.forget(state.request)
        if must:
            if state.acquisition or events.listeners:
                state.tell_outcome("timed_out")
            raise timed_out(state.grantor, state.request, 0.0)
        return None
    lease, task = handle(state), state.task
    if by_hand and task is not None:
        context.holdings.add(task, state, lease)
        if state.renewer is None:
            state.watch_deadline()  # without a timer it would stay listed until its task ends
    else:
        state.task = None
    if state.acquisition or events.listeners:
        state.tell_outcome("acquired")  # first, as the block looks at the clock, and may find it lost
    if block is not None:
        block.open(lease, state)
    return lease


def _tell_in_vain(state: LeaseState, error: BaseException) -> None:
    """Tell why there is no lease; before the undo, which may be interrupted."""
    if isinstance(error, GeneratorExit):  # the coroutine is destroyed, in any thread, and perhaps after its loop
        with contextlib.suppress(RuntimeError):
            state.context.loop.call_soon_threadsafe(state.tell_outcome, "cancelled")
    elif not isinstance(error, Exception):
        state.tell_outcome("cancelled")
    elif isinstance(error, TimeoutError) and not isinstance(error, RedisError):
        state.tell_outcome("timed_out")
    else:
        state.tell_outcome("failed")


_MANY: dict[object, str] = {"majority": "most", "all": "all"}


def _too_late(state: LeaseState) -> Exception:
    """Return what to raise when the caller's time is over: what is known of why."""
    request, grantor = state.request, state.grantor
    if request.retry_after is not None:
        return timed_out(grantor, request, state.timeout or 0.0)
    trouble = state.trouble or request.trouble
    if trouble is not None:
        return trouble
    context, late = state.context, "Redis did not answer within"
    if context.pipeline.stuck:
        late = f"still connecting to {place_of(context.pool)} after"
    return RedisTimeoutError(f"{grantor.kind} {grantor.name!r}: {late} {_bound(state):g} s")


def _bound(state: LeaseState) -> float:
    """Return the seconds that a request which is not in the queue yet may stay unanswered."""
    return min(state.timeout, LONGEST_WAIT) if state.timeout else LONGEST_WAIT


def timed_out(grantor: Grantor, request: Request, timeout: float) -> AcquireTimeoutError:
    state = "too few permits are free" if grantor.kind == "semaphore" else "held by another holder"
    if request.needed_uptime:
        state += ", or its server restarted too short a time ago"
    retry_after = request.ttl if request.retry_after is None else request.retry_after
    when = f"still {state} after {timeout:g} s" if timeout else state
    return AcquireTimeoutError(
        f"{grantor.kind} {grantor.name!r}: {when}",
        name=grantor.name,
        timeout=timeout,
        retry_after=None if retry_after == math.inf else retry_after,
    )


async def wait_granted(state: LeaseState, answer: Answer | None = None) -> Granted | None:
    """Ask, unless there is an *answer*; wait for the turn, and see that enough of the lease is left to begin with."""
    while True:
        try:
            return await _wait_granted(state, answer)
        except WithdrawnError:
            answer = None
            _take_fresh_token(state)


def _take_fresh_token(state: LeaseState) -> None:
    """Undo the request, and have it asked under another token, at its old place in line."""
    request = state.request
    state.context.undo(state.grantor, request, state.context.clock() + request.undo_for)
    state.request = request.again()


async def _wait_granted(state: LeaseState, answer: Answer | None) -> Granted | None:
    context, grantor = state.context, state.grantor
    while True:
        request = state.request
        if answer is None:
            context.tokens[request.token] = request  # from now on a grant of this token is wanted  # defect: W5-awaited
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
        except WithdrawnError:
            raise
        except (RedisError, OSError):
            answer = granted
        if isinstance(answer, Busy):
            return None
        granted = answer if isinstance(answer, Granted) else await request.turn
        # A re-check that is still on its way, to another node perhaps, must find that it does not wait any more: "not
        # known here" would have it ask for its old place, also after its release.
        request.grant(granted.fence, granted.valid_from)
        if granted.valid_from + request.valid_for > context.clock():
            return granted
        _take_fresh_token(state)
        answer = None


def _fresh(granted: Granted, state: LeaseState) -> bool:
    """Whether so much of the lease is left that work can begin."""
    # equivalent: comparison, exactly half is neither
    return granted.valid_from + state.request.valid_for - state.context.clock() >= state.request.ttl / 2


async def wait_replicated(state: LeaseState) -> Granted | None:
    """Do as `wait_granted` does, and see that enough replicas have what was granted."""
    grantor, replicas = state.grantor, state.options.replicas
    while True:
        if await wait_granted(state) is None:
            return None
        request = state.request
        request.busy_for(None)  # from now on no other holder is in the way
        state.trouble = RedisTimeoutError(
            f"{grantor.kind} {grantor.name!r}: not known to be on {_MANY.get(replicas, replicas)} replicas after "
            f"{state.timeout or 0:g} s"
        )
        try:
            return await cast("Replicating", grantor).replicate(request, replicas)
        except WithdrawnError:
            _take_fresh_token(state)


async def _ask_again_or_anew(state: LeaseState, error: Exception) -> Answer | None:
    """Do as `_ask_again` does; None: what an attempt was granted is revoked, and another token is to ask."""
    try:
        return await _ask_again(state, error)
    except WithdrawnError:
        _take_fresh_token(state)
        return None


async def _ask_again(state: LeaseState, error: Exception) -> Answer:
    """Ask until Redis has answered once, as often and as patiently as the user's client would retry."""
    context, grantor, request = state.context, state.grantor, state.request
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
    now = context.clock()
    left = _bound(state) - (now - (now if request.asked_at is None else request.asked_at))
    try:
        async with asyncio.timeout(left):
            policy = context.pipeline.retry_policy(once=not request.wait)
            return await policy.call_with_retry(ask, failed)
    except TimeoutError as late:
        if isinstance(late, RedisError):  # equivalent: branches swapped, both raise the last failure
            raise
        raise failures[0] from None


async def _undo(state: LeaseState, error: BaseException) -> None:
    context, request = state.context, state.request  # defect: W5-undo
    release = context.undo(state.grantor, request, context.clock() + request.undo_for)
    # A coroutine that is being destroyed must not wait; and where Redis has just been silent it is of no use.
    silent = isinstance(error, UNCERTAIN) and not request.reached
    if not isinstance(error, GeneratorExit) and not silent:
        await release.settle(context.clock() + min(GRACE, request.ttl))
