"""Tasks that run in the background of a loop, and a session's last work when that loop ends.

On shutdown, a session is closed after all other tasks have ended. `loop.shutdown_asyncgens()` is asyncio's only hook
for that. It closes all generators in no order, and a generator of the user may be suspended inside a block of ours.
"""

import asyncio
import contextlib
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar, cast, final

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Wrapped(Coroutine[Any, Any, T_co]):
    """A coroutine around another one. `await`, tasks and debuggers see the inner one."""

    __slots__ = ("__weakref__", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, T_co]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *exception: Any) -> Any:
        return self._coroutine.throw(*exception)

    def close(self) -> None:
        self._coroutine.close()

    if not TYPE_CHECKING:  # so that type checkers report missing attributes

        def __getattr__(self, name):
            if name.startswith("cr_") or name in ("__name__", "__qualname__"):
                return getattr(self._coroutine, name)  # for tools that show tasks and their stacks
            return object.__getattribute__(self, name)


@final
class _Quiet(Wrapped[T_co]):
    """A coroutine that gives no "never awaited" warning if its loop ends before its first step."""

    __slots__ = ()

    def __del__(self) -> None:
        self._coroutine.close()


def background(coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Start a task that prints nothing if its loop is closed before it has ended.

    A bare `loop.close()` destroys pending tasks, and asyncio prints a line for each. Ours have nothing to lose, as a
    lease ends by itself. `asyncio.gather` sets the same attribute for the same reason.
    """
    task: asyncio.Task[T] = asyncio.get_running_loop().create_task(_Quiet(coroutine))
    with contextlib.suppress(AttributeError):  # a task of a foreign task factory may lack it
        cast("Any", task)._log_destroy_pending = False
    _background.add(task)
    return task


_background: "weakref.WeakSet[asyncio.Task[Any]]" = weakref.WeakSet()


def in_background(task: "asyncio.Task[Any]") -> bool:
    return task in _background


LAST_GRACE = 1.0
"""Timeout for the releases at the end of a loop, in seconds; the same as for leaving a block."""

_ending: "weakref.WeakSet[asyncio.AbstractEventLoop]" = weakref.WeakSet()
"""Loops that have closed their generators. They may continue to run after that."""


def at_loop_end(close: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[None, None]:
    """Call *close* when the running loop ends, or when the returned generator is given to `finish`."""

    async def wait() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await close()

    loop, generator = asyncio.get_running_loop(), wait()
    with contextlib.ExitStack() as stack:
        if getattr(loop, "_asyncgens_shutdown_called", loop in _ending):
            # A program may close its generators early and continue; the loop would warn of a later generator.
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", ResourceWarning)
        stack.enter_context(contextlib.suppress(StopIteration))
        generator.asend(None).send(None)
    return generator


def finish(generator: AsyncGenerator[None, None]) -> None:
    """Stop waiting for the end of the loop, and run *close*, which must not wait then."""
    with contextlib.suppress(StopIteration, RuntimeError, ValueError):  # RuntimeError, ValueError: it is running
        generator.aclose().send(None)


async def last_releases(unreleased: Callable[[], bool], unanswered: Callable[[], bool]) -> None:
    """Let other generators release their leases, and wait for the replies; for at most `LAST_GRACE` seconds.

    *unreleased* says whether a lease is held, perhaps by such a generator; *unanswered* whether a reply is awaited.
    """
    loop = asyncio.get_running_loop()
    _ending.add(loop)
    until = loop.time() + LAST_GRACE
    await asyncio.sleep(0)  # the loop closes them from this turn on
    while loop.time() < until and (unanswered() or (unreleased() and _others())):  # noqa: ASYNC110  # no event says when
        await asyncio.sleep(0.002)
    # equivalent: constant, one turn more
    for _ in range(3):  # from the reply to its waiter, and out of the block
        await asyncio.sleep(0)


def _others() -> bool:
    """Whether a task of the user still runs; the task that closes all generators does not count."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return any(
        not in_background(task) and getattr(task.get_coro(), "__name__", "") != "shutdown_asyncgens" for task in others
    )
