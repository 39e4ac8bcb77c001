"""Ends what belongs to a loop when `asyncio.run` shuts that loop down, after all tasks have had their say.

`loop.shutdown_asyncgens()` is the one hook that asyncio has for that; a task of ours would be cancelled first. It
closes all generators side by side and in no order, and others may be suspended inside a block of ours.
"""

import asyncio
import contextlib
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from ._link import in_background

LAST_GRACE = 1.0
"""Seconds that the end of a loop waits for what is being released: as long as leaving a block may take."""

_LOOK = 0.002

_ending: "weakref.WeakSet[asyncio.AbstractEventLoop]" = weakref.WeakSet()
"""Loops whose generators were closed, though they may go on."""


def at_loop_end(close: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[None, None]:
    """Have *close* called when the running loop ends, or when what is returned is given to `finish`."""

    async def wait() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await close()

    loop, generator = asyncio.get_running_loop(), wait()
    with contextlib.ExitStack() as stack:
        if getattr(loop, "_asyncgens_shutdown_called", loop in _ending):
            # A program may close its generators early and go on; the loop closes those that came since as well, but
            # warns of each, and would name ours.
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", ResourceWarning)
        stack.enter_context(contextlib.suppress(StopIteration))
        generator.asend(None).send(None)
    return generator


def finish(generator: AsyncGenerator[None, None]) -> None:
    """Wait for the end of the loop no longer; *close* must not wait then."""
    with contextlib.suppress(StopIteration, RuntimeError, ValueError):  # the last two: it is the one that runs
        generator.aclose().send(None)


async def last_releases(unreleased: Callable[[], bool], unanswered: Callable[[], bool]) -> None:
    """Let other generators release what they hold, and wait for the answers; for a bounded time.

    Args:
        unreleased: Whether anything is held, which may be one of theirs.
        unanswered: Whether an answer is worth waiting for.
    """
    loop = asyncio.get_running_loop()
    _ending.add(loop)
    until = loop.time() + LAST_GRACE
    await asyncio.sleep(0)  # they are being closed from this turn on
    while loop.time() < until and (unanswered() or (unreleased() and _others())):  # noqa: ASYNC110  # they do not tell
        await asyncio.sleep(_LOOK)
    for _ in range(3):  # from the answer to who waits for it, and out of the block
        await asyncio.sleep(0)


def _others() -> bool:
    """Whether a task runs that is neither this one, nor the one that closes all generators, nor in our background."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return any(
        not in_background(task) and getattr(task.get_coro(), "__name__", "") != "shutdown_asyncgens" for task in others
    )
