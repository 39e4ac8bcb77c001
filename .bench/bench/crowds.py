"""Starts a crowd of tasks that all ask for a lock, and waits until each of them holds or waits."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from bench.tables import number

_BATCH = 250
"""Number of tasks that ask in one turn of the loop. To start all at once would measure how a library handles a burst,
which is another question."""

_POLL = 0.25
"""Interval between two looks."""

_PATIENCE = 30.0
_ATTEMPTS = 40


async def start(work: Sequence[Coroutine[Any, Any, None]]) -> list["asyncio.Task[None]"]:
    """Return a task for each piece of work, started in that order."""
    tasks = []
    for place in range(0, len(work), _BATCH):
        tasks += [asyncio.create_task(one) for one in work[place : place + _BATCH]]
        await asyncio.sleep(0.01)
    return tasks


async def settle(measure: Callable[[], float], steady: float = 0.005) -> float:
    """Return *measure* once two looks at it differ by no more than that share, or after 30 s."""
    last = measure()
    for _ in range(round(_PATIENCE / _POLL)):
        await asyncio.sleep(_POLL)
        now = measure()
        if abs(now - last) <= steady * abs(now):
            return now
        last = now
    return last


async def stop(tasks: Iterable["asyncio.Task[Any]"]) -> list[BaseException | None]:
    """Cancel tasks until they end, and return their exceptions, without the cancellations.

    Some clients swallow a cancellation that comes at a bad moment, and go on; so they are asked again.
    """
    left, all_tasks = set(tasks), list(tasks)
    for _ in range(_ATTEMPTS):
        for task in left:
            task.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=_POLL)
    return [task.exception() for task in all_tasks if task.done() and not task.cancelled()]


def failures(ends: Sequence[BaseException | None], of: int) -> dict[str, int]:
    """Return how many ended with which exception, for `Run.counted`."""
    errors = Counter(type(end).__name__ for end in ends if end is not None)
    return {f"of {number(of)} failed: {error}": count for error, count in errors.items()}
