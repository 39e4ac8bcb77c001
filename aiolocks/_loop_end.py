"""Ends what belongs to a loop when `asyncio.run` shuts that loop down, after all tasks have had their say.

`loop.shutdown_asyncgens()` is the one hook that asyncio has for that; a task of ours would be cancelled first.
"""

import contextlib
from collections.abc import AsyncGenerator, Callable


def at_loop_end(close: Callable[[], None]) -> AsyncGenerator[None, None]:
    """Have *close* called when the running loop ends, or when what is returned is given to `finish`."""

    async def wait() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            close()

    generator = wait()
    with contextlib.suppress(StopIteration):
        generator.asend(None).send(None)
    return generator


def finish(generator: AsyncGenerator[None, None]) -> None:
    """Wait for the end of the loop no longer."""
    with contextlib.suppress(StopIteration, RuntimeError, ValueError):  # the last two: it is the one that runs
        generator.aclose().send(None)
