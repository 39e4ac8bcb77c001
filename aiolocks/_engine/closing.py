"""Ends the waits that were begun through one `LockManager` when the manager is closed.

Its state is `closed`, and the waiting tasks, each with its `cancelling()` when the wait began. Invariant: a task in
`_waits` is inside `Acquisition.acquire`, so it is cancelled there and nowhere else.
"""

import asyncio
import contextlib
from typing import final

from .._core.untyped import Task


@final
class Closing:
    """Shared by a manager and all primitives that it makes."""

    __slots__ = ("_stopped", "_waits", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._waits: dict[Task, int] = {}
        self._stopped: set[Task] = set()

    def begin(self, kind: str, name: str) -> Task | None:
        """Note that the running task waits from now on, and return it. Raise if the manager is closed."""
        task = asyncio.current_task()
        if task is not None:
            self._waits[task] = task.cancelling()
        if self.closed:  # checked after the task is listed, because another thread may close the manager in between
            self.end(task, None)
            raise closed_error(kind, name)
        return task

    def end(self, task: Task | None, error: BaseException | None) -> bool:
        """Note that *task* no longer waits, and return whether the close alone is the cause of *error*.

        *task* need not be the running task: a destroyed coroutine may end in any thread, or after its loop has ended.
        """
        before = None if task is None else self._waits.pop(task, None)
        if task is None or before is None or task not in self._stopped:
            return False
        self._stopped.discard(task)
        if isinstance(error, GeneratorExit):
            return False
        # P12: a cancellation by others wins.
        return task.uncancel() <= before and isinstance(error, asyncio.CancelledError)

    def close(self) -> None:
        """Refuse later calls, and end the waits."""
        self.closed = True
        here = asyncio.get_running_loop()
        for task in list(self._waits):
            loop = task.get_loop()
            if loop is here:
                self._stop(task)
            else:
                with contextlib.suppress(RuntimeError):  # that loop is closed
                    loop.call_soon_threadsafe(self._stop, task)

    def _stop(self, task: Task) -> None:
        if task in self._waits and task not in self._stopped:
            self._stopped.add(task)
            task.cancel()


def closed_error(kind: str, name: str) -> RuntimeError:
    return RuntimeError(f"{kind} {name!r}: its LockManager is closed")
