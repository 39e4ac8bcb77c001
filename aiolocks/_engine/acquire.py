"""Acquiring a lease: asking, waiting, timeout, cancellation, and the undo of a request that was not granted.

Written once for every primitive; only the Grantor differs. Whatever happens between the first byte and the grant, the
undo of the request begins before the caller learns of it (P7). It goes on in the background if Redis does not answer.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core import events
from .._core.answers import REPLY_TIMEOUT, UNCERTAIN
from .._core.doing import Doing
from .._core.errors import AcquireTimeoutError, LockError, QueueFullError
from .._core.kinds import BUSY, HELD
from .._core.options import Options
from .._core.untyped import Coro
from .._core.values import Holder, described
from .._redis.clients import place_of
from .closing import Closing, closed_error
from .context import Context, Grantor
from .extension import Extension
from .holdings import Base
from .lease_state import LeaseState, ModeChanges, Validity
from .release import GRACE
from .report import Report, begin
from .request import Answer, Busy, Full, Granted, Queued, Request, WithdrawnError

if TYPE_CHECKING:
    from .block import Block

ASKED_FROM = 1.0
"""Timeout in seconds beyond which the error of a late caller names the holders."""

ASKED_BEFORE = 0.05
"""Seconds before the end of that timeout at which Redis is asked for the holders."""

L = TypeVar("L")


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Acquisition:
    """A caller that asks for one lease, until it has the lease or gives up.

    Its state is `request`: what the server is asked now. Invariant: when `acquire` ends, that request was granted and
    is the lease's, or its undo has begun.
    """

    context: Context
    grantor: Grantor
    base: Base
    request: Request
    options: Options
    timeout: float | None
    """Seconds that the caller waits for the grant."""
    closing: Closing | None = None
    """Ends the wait when the manager that made the primitive is closed."""
    changes: ModeChanges | None = None
    _trouble: Exception | None = field(default=None, init=False)
    """Why Redis could not be asked at the last attempt."""
    _report: Report | None = field(default=None, init=False)
    _blockers: tuple[Holder, ...] = field(init=False)
    """Who held it when the caller's time was nearly over; unset if that is not known, as in nearly all acquisitions."""

    @property
    def what(self) -> str:
        return f"{self.grantor.kind} {self.grantor.name!r}"

    async def acquire(
        self, handle: Callable[[LeaseState], L], *, by_hand: bool = False, block: "Block | None" = None,
        or_raise: bool = True,
    ) -> L:  # fmt: skip
        """Wait for the grant and return the *handle* of the lease. Raise what `Lock.acquire` does.

        A lease taken *by_hand* is the caller's to release, also by the name. If there is a *block*, it opens with the
        lease. Without *or_raise*, return None if the lease is busy and the request does not wait. After an error or a
        cancellation, the undo of the request has begun.
        """
        context, grantor, closing, request = self.context, self.grantor, self.closing, self.request
        state = task = report = None
        unset: Any = None
        lease: L = unset
        waiting = None if closing is None else closing.begin(grantor.kind, grantor.name)
        if events.listeners or events.log.isEnabledFor(logging.DEBUG):  # its level can change at any time
            report = self._report = begin(grantor, request)
        try:
            confirming = None
            for option in request.extensions:
                if option.confirms:  # defect: W13-asked
                    confirming = option
            if self.timeout or confirming:
                granted = await self._wait_in_time(confirming)
                now = context.clock()
            else:
                try:  # the first turn of `wait_granted`, nearly always the last: without a coroutine of its own
                    try:
                        context.tokens[request.token] = request  # as `_ask` does, for speed
                        answer = await grantor.grant(request)
                    except UNCERTAIN as error:
                        answer = await self._ask_again(error)
                except WithdrawnError:
                    self.take_fresh_token()
                    answer = None
                now = context.clock()
                # equivalent: comparison, exactly half is neither
                if type(answer) is Granted and answer.valid_from + request.terms.late_after >= now:
                    granted = answer
                else:
                    granted = await self.wait_granted(answer)
                    now = context.clock()
            if report is None and events.listeners:
                report = self._report = Report(grantor)
            if granted is not None:
                request, options = self.request, self.options
                validity = Validity(context, granted.valid_from, request.terms, now, options.max_hold)
                if by_hand:
                    task = asyncio.current_task(context.loop)
                state = LeaseState(
                    context, grantor, self.base, request, options, granted.fence, validity, task, report, self.changes
                )
                state.renew_from(now)
                if block is not None:
                    state.enter(block)
                if request.extensions or request.parts:
                    request.begin_lease()
                lease = handle(state)
        except BaseException as error:
            if state is not None:  # KeyboardInterrupt: nothing may renew the lease, or stop the task, any more
                state.released_elsewhere()
                state.leave(context.clock())
            closed = closing is not None and closing.end(waiting, error)
            late = isinstance(error, TimeoutError) and not isinstance(error, RedisError)
            if report is not None or events.listeners:
                # Before the undo, which can be interrupted.
                (report or Report(grantor)).emit_failure(self.request, error, late=late)
            await self._undo(error)
            if closed:
                raise closed_error(grantor.kind, grantor.name) from None
            with Doing(f"acquiring {self.what}"):
                if late:
                    raise self._too_late() from None
                raise
        if closing is not None:
            closing.end(waiting, None)
        if state is None:
            none: L = self._give_up(or_raise=or_raise)
            return none
        if task is not None:
            context.holdings.add(task, state, lease)
        if report is not None:
            # Before the block checks the clock, and may find the lease lost.
            state.emit("acquired", report.waited(request, now))
        if not state.options.renew and (by_hand or report is not None):
            state.watch_deadline()  # or its loss would not be reported, and it would stay listed until its task ends
        if block is not None:
            block.open(lease, state)
        return lease

    def try_acquire(self, handle: Callable[[LeaseState], L], *, by_hand: bool = False) -> Coro[L | None]:
        """Do as `acquire`, but return None if the lease is busy and the request does not wait."""
        return self.acquire(handle, by_hand=by_hand, or_raise=False)

    def _give_up(self, *, or_raise: bool) -> Any:
        """Stop asking, because the lease is busy and the request does not wait."""
        context, request = self.context, self.request
        if request.unanswered:  # an attempt without a reply may still reach Redis
            context.undos.begin(self.grantor, request, context.clock() + request.undo_for)
        self.grantor.forget(request)
        if or_raise:
            if self._report is not None:
                self._report.emit_end(request, "timed_out")
            raise timed_out(self.grantor, request, 0.0)

    # Asking, and waiting for the grant.

    def _ask(self) -> Awaitable[Answer]:
        request = self.request
        # From now on a grant of this token is wanted.
        self.context.tokens[request.token] = request  # defect: W5-awaited
        return self.grantor.grant(request)

    async def wait_granted(self, answer: Answer | None = None) -> Granted | None:
        """Ask, wait for the grant, and make sure that at least half of the TTL is left.

        Return None if the lease is busy, and the request does not wait. *answer* is the one to an attempt just made.
        """
        while True:
            try:
                if answer is None:
                    try:
                        answer = await self._ask()
                    except UNCERTAIN as error:
                        answer = await self._ask_again(error)
                if isinstance(answer, Busy):
                    return None
                request = self.request
                granted = answer if isinstance(answer, Granted) else await request.turn
                # equivalent: comparison, exactly half is neither
                if granted.valid_from + request.terms.late_after >= self.context.clock():
                    return granted
                extended = await self._extend_late(granted)
                if extended is None or extended.valid_from + request.terms.valid_for > self.context.clock():
                    return extended
            except WithdrawnError:
                pass
            answer = None
            self.take_fresh_token()

    async def _extend_late(self, granted: Granted) -> Granted | None:
        """Extend a grant that was found late to a full TTL. Return None if another holder has it by now."""
        request = self.request
        parts = request.parts
        request.new_turn()
        answer: Answer
        try:
            answer = await self.grantor.grant(request)
        except (WithdrawnError, LockError):
            raise  # P3: it is gone, so the request was refused
        except (RedisError, OSError):
            if request.parts is not parts:
                raise  # P3: a part was gone, so all were given back
            answer = granted
        if isinstance(answer, Busy):
            return None
        granted = answer if isinstance(answer, Granted) else await request.turn
        # W8: a re-check that is still on its way, perhaps to another node, must find that the request waits no longer.
        # Otherwise its "unknown" would make us queue again for a lease that we hold, even after its release.
        request.grant(granted.fence, granted.valid_from)
        return granted

    def take_fresh_token(self) -> None:
        """Undo the request, and replace it by the same one under another token, with its old ticket."""
        request = self.request
        self.context.undos.begin(self.grantor, request, self.context.clock() + request.undo_for)
        self.request = request.again()

    async def _wait_in_time(self, confirming: Extension | None) -> Granted | None:
        """Do as `wait_granted`, within the caller's time. If an option is *confirming*, it has to confirm the grant."""
        wait = self.wait_granted() if confirming is None else self._wait_confirmed(confirming)
        if not self.timeout:
            return await wait
        if self.timeout <= ASKED_FROM:
            async with asyncio.timeout(self.timeout):
                return await wait
        # Two timers, one after the other: a second one from the start would cost callers that need not wait.
        end = self.context.loop.time() + self.timeout
        async with asyncio.timeout(None) as limit:
            nearly_over = self.context.loop.call_at(end - ASKED_BEFORE, self._nearly_over, limit, end)
            try:
                return await wait
            finally:
                nearly_over.cancel()

    def _nearly_over(self, limit: asyncio.Timeout, end: float) -> None:
        """Ask who holds it, and let the wait end at *end*."""
        limit.reschedule(end)
        self.context.spawn(self._ask_blockers())

    async def _ask_blockers(self) -> None:
        with contextlib.suppress(RedisError, OSError, TimeoutError):  # the error then says less
            async with asyncio.timeout(ASKED_BEFORE + GRACE):
                self._blockers = await self.context.session.blockers(self.grantor, self.request)

    async def _wait_confirmed(self, option: Extension) -> Granted | None:
        """Wait for the grant, and until the *option* has confirmed it, such as that enough replicas have it."""
        while True:
            first = await self.wait_granted()
            if first is None:
                return None
            request = self.request
            request.busy_for(None)  # from now on no other holder has it
            self._trouble = RedisTimeoutError(f"{self.what}: {option.unconfirmed()} after {self.timeout or 0:g} s")
            try:
                granted = await option.confirm(self.grantor, request)
            except WithdrawnError:
                self.take_fresh_token()
                continue
            if granted.fence != first.fence:
                request.regranted()
            return granted

    async def _ask_again(self, error: Exception) -> Answer:
        """Ask until Redis has answered once, as often and as patiently as the user's client would retry."""
        context, grantor, request = self.context, self.grantor, self.request
        failures: list[Exception] = [error]
        self._trouble = error

        async def ask() -> Answer:
            if len(failures) == 1:  # the first attempt counts for the policy too
                failures.append(failures[0])
                raise failures[0]
            return Queued() if request.turn.done() else await grantor.grant(request)

        async def failed(error: Exception) -> None:
            failures[0] = self._trouble = error

        if request.turn.done():
            return Queued()
        asked = 0.0 if request.asked_at is None else context.clock() - request.asked_at
        try:
            async with asyncio.timeout(self._longest_wait - asked):
                policy = context.pipeline.retry_policy(once=not request.wait)
                return await policy.call_with_retry(ask, failed)
        except TimeoutError as late:
            if isinstance(late, RedisError):  # equivalent: branches swapped, both raise the last failure
                raise
            raise failures[0] from None

    # Ending without a lease.

    async def _undo(self, error: BaseException) -> None:
        """Begin to undo the request after *error*, and wait for that for up to `GRACE` if it makes sense."""
        context, request = self.context, self.request  # defect: W5-undo
        release = context.undos.begin(self.grantor, request, context.clock() + request.undo_for)
        # A coroutine that is being destroyed cannot wait. Where Redis has just been silent, waiting is of no use.
        silent = isinstance(error, UNCERTAIN) and not request.reached
        if not isinstance(error, GeneratorExit) and not silent:
            await release.settle(context.clock() + min(GRACE, request.terms.ttl))

    def _too_late(self) -> Exception:
        """Return the error to raise when the caller's time is over, by the known reason."""
        request = self.request
        if request.retry_after is not None:
            blockers: tuple[Holder, ...] | None = getattr(self, "_blockers", None)
            return timed_out(self.grantor, request, self.timeout or 0.0, blockers)
        trouble = self._trouble or request.obstacle
        if isinstance(trouble, Exception):
            return trouble
        context, late = self.context, "Redis did not answer within"
        if context.pipeline.stuck:
            late = f"still connecting to {place_of(context.pool)} after"
        return RedisTimeoutError(f"{self.what}: {late} {self._longest_wait:g} s")

    @property
    def _longest_wait(self) -> float:
        """Seconds that a request which is not queued yet can stay unanswered."""
        return min(self.timeout, REPLY_TIMEOUT) if self.timeout else REPLY_TIMEOUT


def timed_out(
    grantor: Grantor, request: Request, timeout: float, holders: tuple[Holder, ...] | None = None
) -> AcquireTimeoutError:
    """Return the error for a caller that other holders have kept waiting; *holders* are those, if Redis was asked."""
    state = BUSY.get(grantor.kind, HELD)
    state += "".join(extension.other_obstacle() for extension in request.extensions)
    retry_after = request.terms.ttl if request.retry_after is None else request.retry_after
    known = None if retry_after == math.inf else retry_after
    if isinstance(request.obstacle, Full):
        waiting = request.obstacle.waiting
        full = f"its queue is full: {waiting} wait already" if waiting else "its queue has no room"
        text = f"{grantor.kind} {grantor.name!r}: {state}, and {full}"
        return QueueFullError(text, name=grantor.name, timeout=timeout, retry_after=known, waiting=waiting)
    if timeout:
        state = f"not granted within {timeout:g} s: {state}"
    if holders:
        now = datetime.fromtimestamp(request.server_time(grantor.context.clock()) / 1e6, UTC)
        state += f"; held by {described(holders, now)}"
    text = f"{grantor.kind} {grantor.name!r}: {state}"
    return AcquireTimeoutError(text, name=grantor.name, timeout=timeout, retry_after=known, holders=holders)
