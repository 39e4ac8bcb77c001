"""Cancels the task in a block whose lease is lost, until it has left the block.

It uses `Task.cancel` and `uncancel`, as `asyncio.timeout` does. An anyio scope would have to be left innermost first,
and exit stacks and generators leave blocks in any order. P12: the task leaves the block with as many cancellation
requests as others have made, and none of ours.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast, final

import anyio

from .._core.untyped import Future, Task

anyio_tasks: Mapping[Task, Any] | None = None
"""anyio's state of each task that has been in one of its scopes; None until its backend is known to be loaded."""

_PAUSE = 0.001
"""Seconds before a task that cannot be cancelled yet is checked again. Also the first pause between repeated
cancellations, and the step by which it grows (W19): cleanup that awaits without a shield is cancelled again soon, and a
body that ignores cancellations does not keep the loop busy."""

_MAX_PAUSE = 0.02
"""Maximum number of seconds between two cancellations or checks."""

_IN_A_ROW = 3
"""Number of cancellations sent in consecutive turns of the loop. `asyncio.wait_for` before Python 3.12 swallows a
cancellation that comes when its future is done, and redis-py writes with `wait_for`. With single cancellations, a body
of commands in a loop went on for seconds."""


@final
class Cancellation:
    """Cancels the *task* of a body whose lease is lost, until the task has left the block.

    Its state is `_sent`, the number of those sent. Invariant: while it can grow, `_timer` or `_waiters` is set.
    """

    __slots__ = ("_before", "_in_shield", "_loop", "_mark", "_pause", "_scopes", "_sent", "_task", "_timer", "_waiters")

    def __init__(self, task: Task, before: int, scopes: "tuple[anyio.CancelScope, ...]", mark: str) -> None:
        """Begin at once. *mark* is the message of our cancellations. Each block has its own, known by its identity."""
        self._task = task
        self._before = before
        self._scopes = scopes
        self._mark = mark
        self._loop = task.get_loop()
        self._sent = 0
        self._pause = _PAUSE
        self._timer: asyncio.Handle | None = None
        self._waiters: tuple[Future, ...] = ()
        self._in_shield = False
        self._cancel()

    def take_back(self) -> None:
        """Stop, and take the sent cancellations back."""
        self.end()
        if not self._task.done():
            for _ in range(self._sent):  # W19: exactly as often as sent
                self._task.uncancel()

    async def sort_out(self, exc: BaseException | None, *, may_wait: bool) -> BaseException | None:
        """After `take_back`, return the exception that leaves the block: *exc* without our own cancellation.

        asyncio delivers cancellation requests that come together as one CancelledError, with the message of one.
        """
        task = self._task
        if not self._sent or asyncio.current_task() is not task:
            return exc
        others = task.cancelling() > self._before  # W19: an outer request is pending
        if not others and may_wait and getattr(task, "_must_cancel", False):  # Python 3.13 has dropped ours by now
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
        # P12: others asked too, and one CancelledError with our message stood for both.
        if may_wait:
            try:
                await asyncio.sleep(0)  # anyio delivers its own again
            except asyncio.CancelledError as again:
                return again
        return asyncio.CancelledError()

    def _without_mark(self, exc: BaseException | None) -> BaseException | None:
        """Return *exc* without our cancellations; None if nothing is left."""
        if isinstance(exc, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", exc)
            ours, rest = group.split(lambda each: self._is_ours(each))  # before Python 3.13, a method is refused
            return group if ours is None else rest
        return None if exc is None or self._is_ours(exc) else exc

    def _is_ours(self, exc: BaseException) -> bool:
        return isinstance(exc, asyncio.CancelledError) and bool(exc.args) and exc.args[0] is self._mark

    def _cancel(self) -> None:
        """Cancel the task if that is possible now, and set the time of the next attempt."""
        self.end()
        task = self._task
        if task.done():
            return
        reached = list(_reached(task))
        if task is asyncio.current_task(self._loop):  # the loss was found by the body itself
            self._timer = self._loop.call_soon(self._cancel)
        elif reached and _about_to_run(reached):
            # W19: not while the cancellation before is undelivered. The next attempt comes by a timer, as
            # `asyncio.wait_for` before Python 3.12 swallows a cancellation that comes at a certain point of a turn.
            self._timer = self._loop.call_later(0 if self._in_shield else _PAUSE, self._cancel)
        elif not reached:  # tasks that wait for one another in a circle
            self._timer = self._loop.call_later(_MAX_PAUSE, self._cancel)
        elif self._would_pierce(reached):
            self._wait_for_shields(reached)
        else:
            task.cancel(self._mark)
            self._sent += 1
            self._in_shield = False  # equivalent: constant, only how soon it looks again
            if self._sent % _IN_A_ROW:
                self._timer = self._loop.call_soon(self._cancel)
            else:
                self._timer = self._loop.call_later(self._pause, self._cancel)
                self._pause = min(self._pause + _PAUSE, _MAX_PAUSE)

    def _would_pierce(self, reached: list[Task]) -> bool:
        """Whether to wait, because a cancellation would reach into shields.

        The first one is sent unless all tasks that it reaches are shielded. Then a shield protects cleanup (P4), so one
        is enough to wait.
        """
        shielded = [any(scope.shield and scope not in self._scopes for scope in scopes_of(each)) for each in reached]
        return any(shielded) if self._sent else all(shielded)

    def _wait_for_shields(self, reached: list[Task]) -> None:
        """Try again each time that one of *reached* has run: it may leave its shield for one turn of the loop."""
        self._in_shield = True
        waiters: list[Future | None] = [getattr(each, "_fut_waiter", None) for each in reached]
        self._waiters = tuple(waiter for waiter in waiters if waiter is not None)
        for waiter in self._waiters:  # the callback of the task itself comes first
            waiter.add_done_callback(self._on_run)
        if None in waiters:
            self._timer = self._loop.call_soon(self._cancel)
        else:
            self._timer = self._loop.call_later(_MAX_PAUSE, self._cancel)  # others may lift the shield

    def _on_run(self, waiter: Future) -> None:
        if waiter in self._waiters:  # or the callback was due when it was removed
            self._cancel()

    def end(self) -> None:
        """Stop, until the next `_cancel`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in self._waiters:
            waiter.remove_done_callback(self._on_run)  # equivalent: line dropped, a callback left there finds nothing
        self._waiters = ()  # equivalent: line dropped, nothing reads it after that


def _reached(task: Task) -> Iterator[Task]:
    """Yield the tasks that a cancellation of *task* reaches: the last ones in its chain of waits, also by `gather`."""
    seen: set[Future] = set()
    left: list[Future] = [task]
    while left:
        one = left.pop()
        if one in seen or one.done():
            continue
        seen.add(one)
        waiter: Future | None = getattr(one, "_fut_waiter", None)
        further = isinstance(waiter, asyncio.Task) or hasattr(waiter, "_children")
        if waiter is not None and further and not waiter.done():
            left.append(waiter)
        elif isinstance(one, asyncio.Task):
            yield one
        else:
            left.extend(getattr(one, "_children", ()))


def _about_to_run(reached: list[Task]) -> bool:
    """Whether all are about to run: a cancellation is undelivered, or their future is done."""
    return all(
        getattr(each, "_must_cancel", False)
        or (isinstance(waiter := getattr(each, "_fut_waiter", None), asyncio.Future) and waiter.done())
        for each in reached
    )


async def _cancelled_by_scope(task: Task) -> asyncio.CancelledError | None:
    """Return a scope's own cancellation, which anyio does not deliver to a task that ours has woken."""
    if scopes_of(task):
        from anyio.lowlevel import checkpoint_if_cancelled

        try:
            await checkpoint_if_cancelled()
        except asyncio.CancelledError as error:
            return error
    return None


def scopes_of(task: Task) -> tuple[anyio.CancelScope, ...]:
    """Return the anyio scopes around *task*, innermost first; a native cancellation reaches into their shields."""
    global anyio_tasks
    backend: Any = sys.modules.get("anyio._backends._asyncio")  # without it there are no scopes; loading takes 65 ms
    anyio_tasks = None if backend is None else backend._task_states
    state = None if anyio_tasks is None else anyio_tasks.get(task)
    scope = None if state is None else state.cancel_scope
    found: tuple[anyio.CancelScope, ...] = ()
    while scope is not None:
        found += (scope,)
        scope = scope._parent_scope
    return found
