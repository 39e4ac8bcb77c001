"""Ends the waits that were begun through one `LockManager` when that is closed.

Its state is `closed`, and the tasks that wait, each with its count of cancellations at the beginning. Invariant: a task
in `_waits` is inside `acquire.take`, so it can be cancelled there, and nowhere else.
"""

import asyncio
import contextlib
from typing import Any, final


@final
class Closing:
    """Shared by a manager and all that it makes."""

    __slots__ = ("_stopped", "_waits", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._waits: dict[asyncio.Task[Any], int] = {}
        self._stopped: set[asyncio.Task[Any]] = set()

    def begin(self, kind: str, name: str) -> None:
        """Note that the running task waits from now on.

        Raises:
            RuntimeError: It is closed.
        """
        task = asyncio.current_task()
        if task is not None:
            self._waits[task] = task.cancelling()
        if self.closed:  # looked at after that is written, as another thread may close it between the two
            self.end(None)
            raise closed_error(kind, name)

    def end(self, error: BaseException | None) -> bool:
        """Note that the running task does not wait any more, and say whether *error* is due to the close alone."""
        task = asyncio.current_task()
        before = self._waits.pop(task, None) if task is not None else None
        if task is None or before is None or task not in self._stopped:
            return False
        self._stopped.discard(task)
        # P12: a cancellation by others wins.
        return task.uncancel() <= before and isinstance(error, asyncio.CancelledError)

    def close(self) -> None:
        """Refuse what comes from now on, and end the waits."""
        self.closed = True
        here = asyncio.get_running_loop()
        for task in list(self._waits):
            loop = task.get_loop()
            if loop is here:
                self._stop(task)
            else:
                with contextlib.suppress(RuntimeError):  # that loop is closed
                    loop.call_soon_threadsafe(self._stop, task)

    def _stop(self, task: "asyncio.Task[Any]") -> None:
        if task in self._waits and task not in self._stopped:
            self._stopped.add(task)
            task.cancel()


def closed_error(kind: str, name: str) -> RuntimeError:
    """Return what to raise for a call through a manager that is closed."""
    return RuntimeError(f"{kind} {name!r}: its LockManager is closed")
