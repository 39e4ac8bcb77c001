"""The task that runs the body of a block, and how a lost lease stops it: by cancelling it until the block is left.

`Task.cancel` and `uncancel`, as in `asyncio.timeout`, and not an anyio scope: a scope must be left innermost first,
and blocks are not (exit stacks, generators). W19, the one rule: the task leaves the block as it came, with as many
cancellation requests as others made, and none of ours.
"""

import asyncio
import logging
import sys
from collections.abc import Iterator
from typing import Any, Protocol, cast, final

import anyio

from .holdings import Base, Holdings

log = logging.getLogger("aiolocks")

Task = asyncio.Task[Any]

LOOK_AGAIN = 0.001
"""Seconds after which a task is looked at again that cannot be cancelled just now; also the first pause between two
cancellations. Each pause is that much longer than the one before: cleanup that awaits without a shield is cancelled
again soon, and a body that ignores it does not keep the loop busy."""

LONGEST_PAUSE = 0.02

TOGETHER = 3
"""Cancellations sent in turns of the loop that follow one another. `asyncio.wait_for` before Python 3.12 swallows one
that comes when what it waits for is done, as redis-py's writing is in the next turn: of single ones so many were lost
that a body of commands in a loop went on for seconds."""

LATER = 1.0
"""Seconds from the end of a task to the warning that a block which it entered is still open. Fixtures, generators and
`asyncio.run` at its end leave such blocks within that time."""


class Named(Protocol):
    """What messages say of a name."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...


class _Mark(str):
    """The message of our cancellations; each block has one of its own."""

    __slots__ = ()


@final
class BodyTask:
    """What a task is inside of, from the entry of one block until it is left.

    It knows neither the lease nor the block: the watchdog refers to it, and must keep neither of them alive.
    """

    __slots__ = (
        "_before", "_counted", "_holdings", "_in_shield", "_loop", "_mark", "_pause", "_scopes", "_sent", "_timer",
        "_waiters", "_what", "base", "over", "permits", "task",
    )  # fmt: skip

    def __init__(
        self, task: Task | None, before: int, loop: asyncio.AbstractEventLoop, holdings: Holdings[Any], what: Named,
        base: Base, permits: int,
    ) -> None:  # fmt: skip
        """Note that *task* is inside; *before* is how often it had been asked to cancel when it began to enter."""
        self.task = task
        self.base, self.permits = base, permits
        self.over = False
        self._before = before
        self._loop, self._holdings, self._what = loop, holdings, what
        self._mark: _Mark | None = None
        self._sent = 0
        self._pause = LOOK_AGAIN
        self._timer: asyncio.Handle | None = None
        self._waiters: tuple[asyncio.Future[Any], ...] = ()
        self._in_shield = False
        self._scopes: tuple[anyio.CancelScope, ...] = ()
        """Those around the block: they may be shielded as they like."""
        self._counted = task is not None
        if task is not None:
            self._scopes = tuple(_scopes(task))
            holdings.enter(task, self)

    def no_longer_inside(self) -> None:
        """Note that the lease is over: the task may take the name again."""
        self.over = True
        if self._counted:
            self._counted = False
            if self.task is not None:
                self._holdings.uncount(self.task, self.base, self.permits)

    def stop(self) -> None:
        """Cancel the task until it has left the block, as the lease is lost."""
        if self.task is None or self.task.done():
            log.error(
                "%s %r: a lease is lost, and its block was entered in a task that has ended, so that nothing can be "
                "stopped; the block raises LeaseLostError at its end. Enter it in the task that works in it",
                self._what.kind, self._what.name,
            )  # fmt: skip
        else:
            self._mark = _Mark(f"the lease of {self._what.kind} {self._what.name!r} is lost")
            self._cancel()

    def task_ended(self) -> None:
        """Let go of the task; it has ended with the block open."""
        self.task = None
        self._stop_looking()
        if not self.over and not self._loop.is_closed():  # equivalent: and/or, the warning looks at that itself
            self._timer = self._loop.call_later(LATER, self._warn)

    def leave(self) -> None:
        """Stop cancelling, and take back what was asked for."""
        self._stop_looking()
        task = self.task
        if task is not None:
            self.no_longer_inside()
            self._holdings.leave(task, self)
            if not task.done():
                for _ in range(self._sent):
                    task.uncancel()

    async def sort_out(self, exc: BaseException | None, *, may_wait: bool) -> BaseException | None:
        """After `leave`, return what leaves the block of what left its body: all but our own cancellation.

        In asyncio, requests to cancel that come together are delivered as one CancelledError, with the message of any.
        """
        task = self.task
        if not self._sent or task is None or asyncio.current_task() is not task:
            return exc
        others = task.cancelling() > self._before
        if not others and may_wait and getattr(task, "_must_cancel", False):  # on Python 3.13 it is gone by now
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as late:
                if task.cancelling() > self._before:
                    return late
        rest = self._without_mark(exc)
        if exc is None or (rest is not None and not isinstance(rest, asyncio.CancelledError)):
            return rest
        if not others:
            return await _cancelled_by_scope(task) if may_wait else None
        if rest is not None:
            return rest
        # Others asked too, and one CancelledError with our message stood for both.
        if may_wait:
            try:
                await asyncio.sleep(0)  # anyio delivers its own again
            except asyncio.CancelledError as again:
                return again
        return asyncio.CancelledError()

    def _without_mark(self, exc: BaseException | None) -> BaseException | None:
        if isinstance(exc, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", exc)
            ours, rest = group.split(lambda each: self._is_ours(each))  # before Python 3.13, no method will do
            return group if ours is None else rest
        return None if exc is None or self._is_ours(exc) else exc

    def _is_ours(self, exc: BaseException) -> bool:
        return isinstance(exc, asyncio.CancelledError) and bool(exc.args) and exc.args[0] is self._mark

    def _cancel(self) -> None:
        self._stop_looking()
        task = self.task
        if task is None or task.done():
            return
        reached = list(_reached(task))
        if task is asyncio.current_task(self._loop):  # the loss was found by the body itself
            self._timer = self._loop.call_soon(self._cancel)
        elif reached and _on_their_way(reached):
            # At no fixed moment of a turn: `asyncio.wait_for` before Python 3.12 swallows what comes at a certain one.
            self._timer = self._loop.call_later(0 if self._in_shield else LOOK_AGAIN, self._cancel)
        elif not reached:  # tasks that wait for one another in a circle
            self._timer = self._loop.call_later(LONGEST_PAUSE, self._cancel)
        elif self._would_pierce(reached):
            self._look_when_they_go_on(reached)
        else:
            task.cancel(self._mark)
            self._sent += 1
            self._in_shield = False  # equivalent: constant, only how soon it looks again
            if self._sent % TOGETHER:
                self._timer = self._loop.call_soon(self._cancel)
            else:
                self._timer = self._loop.call_later(self._pause, self._cancel)
                self._pause = min(self._pause + LOOK_AGAIN, LONGEST_PAUSE)

    def _would_pierce(self, reached: list[Task]) -> bool:
        """Whether a cancellation would cut off what a shield protects: cleanup, once something has been sent."""
        shielded = [any(scope.shield and scope not in self._scopes for scope in _scopes(each)) for each in reached]
        return any(shielded) if self._sent else all(shielded)

    def _look_when_they_go_on(self, reached: list[Task]) -> None:
        """Look again each time that one of *reached* has gone on: it may leave its shield for one turn of the loop."""
        self._in_shield = True
        waiters: list[asyncio.Future[Any] | None] = [getattr(each, "_fut_waiter", None) for each in reached]
        self._waiters = tuple(waiter for waiter in waiters if waiter is not None)
        for waiter in self._waiters:  # who waits for it is called back before
            waiter.add_done_callback(self._look)
        if None in waiters:
            self._timer = self._loop.call_soon(self._cancel)
        else:
            self._timer = self._loop.call_later(LONGEST_PAUSE, self._cancel)  # others may lift the shield

    def _look(self, waiter: "asyncio.Future[Any]") -> None:
        if waiter in self._waiters:  # else it was about to call back when it was given up
            self._cancel()

    def _stop_looking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in self._waiters:
            waiter.remove_done_callback(self._look)  # equivalent: line dropped, a callback left there finds nothing
        self._waiters = ()  # equivalent: line dropped, nothing reads it after that

    def _warn(self) -> None:
        self._timer = None
        if not self.over:
            log.warning(
                "%s %r: the task that entered a block has ended, and the block is still open: if the lease is lost, "
                "nothing can be stopped. Enter it in the task that works in it",
                self._what.kind, self._what.name,
            )  # fmt: skip


def _reached(task: Task) -> Iterator[Task]:
    """Yield the tasks that a cancellation of *task* goes to: those that it waits for in the end, also by `gather`."""
    seen: set[asyncio.Future[Any]] = set()
    left: list[asyncio.Future[Any]] = [task]
    while left:
        one = left.pop()
        if one in seen or one.done():
            continue
        seen.add(one)
        waiter: asyncio.Future[Any] | None = getattr(one, "_fut_waiter", None)
        further = isinstance(waiter, asyncio.Task) or hasattr(waiter, "_children")
        if waiter is not None and further and not waiter.done():
            left.append(waiter)
        elif isinstance(one, asyncio.Task):
            yield one
        else:
            left.extend(getattr(one, "_children", ()))


def _on_their_way(reached: list[Task]) -> bool:
    """Whether all are about to go on: with a cancellation not delivered yet, or with what they have waited for."""
    return all(
        getattr(each, "_must_cancel", False)
        or (isinstance(waiter := getattr(each, "_fut_waiter", None), asyncio.Future) and waiter.done())
        for each in reached
    )


async def _cancelled_by_scope(task: Task) -> asyncio.CancelledError | None:
    """Return the cancellation by a scope around the block, if there is one that came too late to be delivered first.

    anyio delivers one in each turn of the loop, but none to a task that ours has woken.
    """
    if any(True for _ in _scopes(task)):
        from anyio.lowlevel import checkpoint_if_cancelled

        try:
            await checkpoint_if_cancelled()
        except asyncio.CancelledError as error:
            return error
    return None


def _scopes(task: Task) -> Iterator[anyio.CancelScope]:
    """Yield the anyio scopes that *task* is in, innermost first. A native cancellation would pierce their shields.

    anyio has no public name for this.
    """
    backend: Any = sys.modules.get("anyio._backends._asyncio")  # not loaded: there are no scopes; loading takes 65 ms
    state = None if backend is None else backend._task_states.get(task)
    scope = None if state is None else state.cancel_scope
    while scope is not None:
        yield scope
        scope = scope._parent_scope
