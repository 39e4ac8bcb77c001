"""The body of a block: stopped when its lease is lost, and the lease released at its end, whichever way it ends.

The scope's own deadline is never used: the lease's timer reads the deadline anew when it fires, since a renewal that
came meanwhile must count.
"""

import asyncio
import contextlib
import logging
from collections.abc import Generator
from inspect import CO_ASYNC_GENERATOR
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, final

import anyio

from ._lease import Lease, unlist
from ._lease_state import TAKEN, LeaseState
from ._withdrawal import Withdrawal

if TYPE_CHECKING:
    from ._ledger import Block
    from ._session import Session

log = logging.getLogger("aiolocks")

GRACE = 1.0
"""Seconds that leaving a block, or an acquire that failed, waits for its undo at most; it goes on in the background."""


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
    """The body of a block with a lease: stopped when the lease is lost, and the lease released at its end."""

    __slots__ = ("_lease", "_permits", "_scope", "_state", "outer", "task")

    def __init__(self, lease: Lease, state: LeaseState, task: "asyncio.Task[Any] | None") -> None:
        self._lease: Lease | None = lease
        self._state = state
        state.entered = True
        self.task = task
        self.outer: Block | None = None
        self._scope: anyio.CancelScope | None = None
        self._permits = state.request.permits  # a lease that changes its mode leaves as what it entered as
        if task is not None:
            state.session.ledger.enter(task, state.base, self._permits)
        if state.options.on_lost == "cancel":
            self._scope = state.session.new_scope()
            self._scope.__enter__()
            state.on_loss = self._scope.cancel
            if not state.options.renewed_in_loop:
                state.watch_deadline()

    async def leave(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        frame: FrameType,
    ) -> None:
        """End the block that *frame* leaves. The cancellation that a loss has sent becomes its LeaseLostError.

        Raises:
            LeaseLostError: The lease was lost, and the body did not raise an exception of its own.
        """
        state, task, leaving = self._state, self.task, exc
        session = state.session
        now = session.clock()
        state.on_loss = None
        valid = state.end(now)
        if self._lease is not None:
            unlist(self._lease)
        if task is not None:
            session.ledger.leave(task, state.base, self._permits)
            if self._scope is not None and not session.foreign:  # in a fork no loop runs that it could be left in
                leaving = _close(task, self._scope, exc_type, exc, traceback)
        self._lease = self._scope = None  # of what waits for Redis, the garbage collector goes through all
        withdrawal = state.drop(now)
        if not valid:
            session.touch()
            if state.lost:
                self._report(state.reason, leaving)
        elif withdrawal is not None and (not isinstance(exc, GeneratorExit) or may_wait(frame)):
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
            raise leaving

    def abandon(self) -> None:
        """Let go of the task: its loop was closed. anyio would keep it for as long as its scope is open."""
        if self.task is not None and self._scope is not None:
            with contextlib.suppress(RuntimeError), _acting_as(self.task):  # not the innermost: a scope of the body's
                self._scope.__exit__(None, None, None)

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
        error = self._state.error(reason)
        if leaving is None:
            if self._state.options.on_lost == "cancel":
                raise error from None
        elif not isinstance(leaving, (asyncio.CancelledError, GeneratorExit)):
            leaving.add_note(str(error))


def may_wait(frame: FrameType) -> bool:
    """Whether code in *frame* may await while a GeneratorExit passes: not in a coroutine that is being destroyed."""
    return bool(frame.f_code.co_flags & CO_ASYNC_GENERATOR)


_left_behind: "dict[asyncio.Task[Any], list[anyio.CancelScope]]" = {}
"""Scopes of blocks that were left before a block inside them, such as those of two generators closed in turn."""


def _close(
    task: "asyncio.Task[Any]",
    scope: anyio.CancelScope,
    exc_type: type[BaseException] | None,
    exc: BaseException | None,
    traceback: TracebackType | None,
) -> BaseException | None:
    """Leave *scope* in the name of *task*; one that is not the task's innermost yet is left as soon as it is.

    Return the exception that leaves it, where the loss's own cancellation has ended.
    """
    try:
        if scope.__exit__(exc_type, exc, traceback):
            exc = None
    except BaseExceptionGroup as rest:  # the body's group, without our cancellation in it
        exc = rest
    except RuntimeError:
        if asyncio.current_task() is not task:
            with _acting_as(task):
                _close(task, scope, None, None, None)  # the exception is another task's
        else:
            if task not in _left_behind:
                task.add_done_callback(_left_behind.pop)
            _left_behind.setdefault(task, []).append(scope)
        return exc
    if _left_behind:
        earlier = _left_behind.get(task, [])
        with contextlib.suppress(RuntimeError):
            while earlier:
                earlier[-1].__exit__(None, None, None)
                earlier.pop()
    return exc


@contextlib.contextmanager
def _acting_as(task: "asyncio.Task[Any]") -> Generator[None, None, None]:
    """Have *task* be the current one meanwhile, by the functions that asyncio documents for other task classes.

    A scope must be left by the task that entered it, even if another one finalizes its generator. Otherwise it would
    stay the innermost of that task, which could then leave none of the scopes around it.
    """
    current = asyncio.current_task()
    loop = asyncio.get_running_loop()
    if current is not None:
        asyncio.tasks._leave_task(loop, current)
    asyncio.tasks._enter_task(loop, task)
    try:
        yield
    finally:
        asyncio.tasks._leave_task(loop, task)
        if current is not None:
            asyncio.tasks._enter_task(loop, current)
