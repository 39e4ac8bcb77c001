"""The body of a block: stopped when its lease is lost, and the lease released at its end, whichever way it ends."""

import asyncio
import logging
import traceback
from contextlib import AsyncExitStack
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from types import FrameType
from typing import TYPE_CHECKING, Any, final

import anyio

from ._lease import Lease, unlist
from ._lease_state import TAKEN, LeaseState
from ._stop import BodyTask
from ._withdrawal import Withdrawal

if TYPE_CHECKING:
    from ._session import Session

log = logging.getLogger("aiolocks")

GRACE = 1.0
"""Seconds that leaving a block, or an acquire that failed, waits for its undo at most; it goes on in the background."""


_STACK_LEAVES = AsyncExitStack.__aexit__.__code__


async def settle(session: "Session", withdrawal: Withdrawal, until: float) -> None:
    """Wait until *withdrawal* is done, or *until* has come; a cancellation is passed on only afterwards.

    Shielded: the cancellation of a scope around the task may have been seen already, and is not to be seen again.
    """
    interruption: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):  # costs as much as all the rest, so only where it is needed
        while not withdrawal.done and session.clock() < until:
            try:
                await withdrawal.wait(until)
            except asyncio.CancelledError as cancelled:
                interruption = cancelled
    if interruption is not None:
        raise interruption


@final
class Body:
    """The body of a block with a lease, which ends with it.

    What leaves the block holds this, and nothing else does: a block that nobody can leave any more keeps no lease.
    """

    __slots__ = ("_inside", "_lease", "_state")

    def __init__(self, lease: Lease, state: LeaseState, task: "asyncio.Task[Any] | None", before: int) -> None:
        """Begin it, in *task*; *before* is how often that had been asked to cancel when it began to enter."""
        session = state.session
        self._lease: Lease | None = lease
        self._state = state
        inside = BodyTask(
            # A lease that changes its mode leaves as what it entered as.
            task, before, session.loop, session.ledger, state.grantor, state.base, state.request.permits
        )  # fmt: skip
        self._inside: BodyTask | None = inside
        state.inside = inside
        state.entered = True
        if state.options.on_lost == "cancel":
            state.on_loss = inside.stop
            if not state.options.renewed_in_loop:
                state.watch_deadline()

    @property
    def task(self) -> "asyncio.Task[Any] | None":
        """Which task works in it; None once that has ended."""
        return None if self._inside is None else self._inside.task

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._state.session.loop

    async def leave(self, exc: BaseException | None, frame: FrameType) -> None:
        """End the block that *frame* leaves, with the exception that leaves its body, if any.

        The cancellation that a loss has sent becomes its LeaseLostError.

        Raises:
            LeaseLostError: The lease was lost, and the body did not raise an exception of its own.
        """
        state, inside, leaving = self._state, self._inside, exc
        if inside is None:
            raise RuntimeError("this block was left already")
        session = state.session
        now = session.clock()
        state.on_loss = None
        valid = state.end(now)
        if self._lease is not None:
            unlist(state)
        inside.leave()
        state.inside = None
        self._lease = self._inside = None
        withdrawal = state.drop(now)
        waits = not isinstance(exc, GeneratorExit) or may_wait(frame, exc)
        if not valid:
            session.touch()
            if not session.foreign:  # in a fork no loop runs that it could be left in
                leaving = await inside.sort_out(exc, may_wait=waits)
            if state.lost:
                self._report(state.reason, leaving)
        elif withdrawal is not None and waits:
            del inside  # of what waits for Redis, the garbage collector goes through all
            until = state.deadline if state.deadline < now + GRACE else now + GRACE
            if leaving is not None:
                await settle(session, withdrawal, until)
            else:
                try:
                    await withdrawal.wait(until)
                except asyncio.CancelledError:
                    await settle(session, withdrawal, until)
                    raise
            if not withdrawal.ended:
                self._judge(withdrawal, leaving)
        if leaving is not None and leaving is not exc:
            try:
                raise leaving
            finally:
                del leaving  # or its traceback and this frame keep each other, and all that the caller has, until a gc

    def _judge(self, withdrawal: Withdrawal, leaving: BaseException | None) -> None:
        """Say what is wrong with the release of a lease that was valid until then, if anything is."""
        state = self._state
        if not withdrawal.done or withdrawal.trouble is not None:
            log.warning(
                "%s %r: the release could not be confirmed; the lease ends with its TTL of %g s at the latest",
                state.grantor.kind, state.grantor.name, state.request.ttl,
            )  # fmt: skip
        elif withdrawal.ended is False:
            self._report(TAKEN, leaving)

    def _report(self, reason: str, leaving: BaseException | None) -> None:
        if leaving is None:
            if self._state.options.on_lost == "cancel":
                raise self._state.error(reason) from None
        elif not isinstance(leaving, (asyncio.CancelledError, GeneratorExit)):
            leaving.add_note(str(self._state.error(reason)))


def may_wait(frame: FrameType, leaving: GeneratorExit) -> bool:
    """Whether code in *frame* may await while *leaving* passes: not in a coroutine that is being destroyed.

    A generator that is closed may; but in one that a destroyed coroutine leaves, *leaving* has come through that.
    """
    if frame.f_code is _STACK_LEAVES and frame.f_back is not None:
        frame = frame.f_back  # which leaves the stack
    if not frame.f_code.co_flags & CO_ASYNC_GENERATOR:
        return False
    return not any(passed.f_code.co_flags & CO_COROUTINE for passed, _ in traceback.walk_tb(leaving.__traceback__))
