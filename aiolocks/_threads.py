"""Calls from threads to the event loop of `_loop_thread`.

Each calling thread has one task in that loop, which runs its calls in order. So what holds for a task holds for a
thread: an `RLock` can be acquired again, `release()` finds the thread's own leases, and a thread that would wait for
itself gets a RuntimeError. The thread sleeps until its call is ANSWERED. If it is interrupted before that, as by
Ctrl-C, nothing stays behind:

| the call is | what the interruption does                                                         |
| ----------- | ---------------------------------------------------------------------------------- |
| MADE        | it is never posted, unless it releases something                                   |
| POSTED      | it never begins                                                                    |
| RUNNING     | it is cancelled, and gives back what it has acquired, like any cancelled coroutine |
| ANSWERED    | its result is given back, by `undo`                                                |

A call that releases something goes on instead. The thread waits for all that up to `_GRACE` seconds. What is not done
by then goes on in the loop.
"""

import asyncio
import contextlib
import contextvars
import enum
import inspect
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar, final

import anyio

from . import _loop_thread

T = TypeVar("T")

_GRACE = 2.0
"""Timeout for giving back what an interrupted call has acquired, in seconds. The engine itself takes 1 s at most."""


@final
class _Caller:
    """A calling thread. `waits` is True while it sleeps in a call. Its task ends with it."""

    def __init__(self) -> None:
        self.loop = _loop_thread.begin()
        self.calls = asyncio.Queue[Call[Any] | None]()
        self.waits = False
        name = threading.current_thread().name  # `holders()` shows it
        # Without the thread's context variables, which would otherwise live as long as the thread.
        start = partial(self.loop.start, _serve, self.calls, name=name)
        self.loop.post(start, context=contextvars.Context())

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, RuntimeError):  # `__init__` failed, or the loop is closed
            if not self.loop.inherited:
                self.loop.post(self.calls.put_nowait, None)


async def _serve(calls: "asyncio.Queue[Call[Any] | None]") -> None:
    while (call := await calls.get()) is not None:
        await call.run()
        del call  # it refers to its result


class _Here(threading.local):
    """What belongs to the calling thread; Python drops it when the thread ends."""

    caller: _Caller | None = None

    def find_caller(self) -> _Caller:
        caller = self.caller
        if caller is None or caller.loop is not _loop_thread.current or caller.loop.error is not None:
            self.caller = caller = _Caller()  # after a fork or a failure, this thread needs a caller in another loop
        return caller


_here = _Here()


class _Progress(enum.Enum):
    MADE = "made"
    POSTED = "posted"
    RUNNING = "running"
    ANSWERED = "answered"


@final
class Call(Generic[T]):
    """One call of a thread.

    Its state is `_progress`, and `_over` once its thread was interrupted. Invariant: only the loop changes these, once
    `result` has begun.
    """

    def __init__(
        self, make: Callable[[], Awaitable[T]], undo: Callable[[T], Awaitable[object]] | None = None, *,
        certain: bool = False,
    ) -> None:  # fmt: skip
        """*make* is called and awaited in the loop. *undo* gives back a result that the thread did not get.

        A *certain* call goes on if the thread is interrupted: it releases something.
        """
        self._make, self._undo, self._certain = make, undo, certain
        self._progress = _Progress.MADE
        self._over = self._given_up = False
        self._left: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Gets an item when nothing is left. It has no lock that another interruption could leave locked."""
        self._task: asyncio.Task[Any] | None = None
        self._job: asyncio.Future[Callable[[], Any]] | None = None
        self._loop: _loop_thread.Loop | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """Functions for the thread to run, then None for the answer."""
        self._value: Any = None
        self._error: BaseException | None = None

    def result(self, of: str, *, apart: bool = False) -> T:
        """Run it in the task of this thread, and return its result. *of* is the asynchronous class, for errors.

        Run *apart*, it has a task and the thread's context variables of its own, so its functions can make other calls.

        Raises:
            RuntimeError: An event loop runs in this thread. Or the thread waits in a call already, which a signal
                handler or destructor has interrupted.
            BaseException: The exception of the call; or the one that interrupted this thread.
        """
        _refuse_running_loop(of)
        caller = _here.find_caller()
        if caller.waits:
            raise RuntimeError(
                "this thread waits in a call of aiolocks.sync, and a signal handler or destructor makes another one; "
                "let the handler raise an exception, such as SystemExit, which ends the wait and leaves the blocks"
            )
        self._loop = caller.loop
        caller.loop.waiting[self] = self._inbox
        # From the answer on nothing is called, as Python looks for signals there, and the caller lacks the result yet.
        try:
            caller.waits = True
            caller.loop.check()  # if the loop fails after this, `_fail` puts an error into the inbox
            caller.loop.post(self._enter, caller, apart)
            while (job := self._inbox.get()) is not None:
                caller.waits = False
                job()
                if caller.loop.inherited:
                    raise RuntimeError("this process is a fork: only its parent gets the answer to this call")
                caller.waits = True
        except BaseException:
            while not self._given_up:
                try:
                    self._give_up(caller)
                except BaseException:  # a second signal, pending beside the first, or the loop just ended
                    if self._given_up:
                        raise
            raise
        finally:
            caller.waits = False
            del caller.loop.waiting[self]
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback refers to this frame
        return self._value  # type: ignore[no-any-return]

    def _give_up(self, caller: _Caller) -> None:
        """Let the loop end it, as this thread was interrupted, and wait for that."""
        if not (caller.loop.inherited or caller.loop.error is not None or caller.loop.closed()):
            caller.loop.post(self._abandon, caller.calls)
            self._given_up = True
            with contextlib.suppress(queue.Empty):
                self._left.get(timeout=_GRACE)
        self._given_up = True

    def _enter(self, caller: _Caller, apart: bool) -> None:
        self._progress = _Progress.POSTED
        if apart:
            caller.loop.start(self.run)
        else:
            caller.calls.put_nowait(self)

    async def run(self) -> None:
        task = self._task = asyncio.current_task()
        assert task is not None
        if not self._over or self._certain:
            self._progress, before = _Progress.RUNNING, task.cancelling()
            try:
                self._value = await self._make()
            except Exception as error:
                self._error = error
            except asyncio.CancelledError as error:
                if not self._over and (task.cancelling() > before or _loop_thread.exiting):
                    raise  # the loop ends: threads that still wait at exit are stopped where they are
                self._error = error
            if task.cancelling() > before:
                task.uncancel()
            self._progress = _Progress.ANSWERED
        if not self._over:
            self._inbox.put(None)
        else:
            await self._give_back()

    def _abandon(self, calls: "asyncio.Queue[Call[Any] | None]") -> None:
        """End it, as its thread was interrupted. Two interruptions may have posted this twice."""
        if self._over:
            return
        self._over = True
        if self._job is not None:
            self._job.cancel()  # the thread does not run it
        if self._progress is _Progress.MADE and self._certain:
            calls.put_nowait(self)
        elif self._progress is _Progress.MADE:
            self._left.put(None)  # the interruption came before it was posted
        elif self._progress is _Progress.ANSWERED:
            calls.put_nowait(Call(self._give_back, certain=True))
        elif self._progress is _Progress.RUNNING and self._task is not None and not self._certain:
            self._task.cancel()

    async def _give_back(self) -> None:
        if self._progress is _Progress.ANSWERED and self._error is None and self._undo is not None:
            with contextlib.suppress(Exception):  # the lease then ends with its TTL
                await self._undo(self._value)
        self._left.put(None)

    def in_thread(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Return a coroutine function that runs *function* in the thread, which waits for this call.

        A cancellation cannot stop a thread, so it waits for the end of *function*. If that raises an exception such as
        KeyboardInterrupt, that leaves `result`, and the coroutine is cancelled.
        """
        _check_plain(function)

        async def run(*args: object) -> Any:
            loop = self._loop
            if loop is None or self._over or self._progress is not _Progress.RUNNING:
                raise asyncio.CancelledError
            if _loop_thread.exiting or loop.error is not None:  # nothing begins in a thread any more
                raise asyncio.CancelledError
            self._job = job = asyncio.get_running_loop().create_future()
            loop.jobs.add(job)
            self._inbox.put(partial(_do, partial(contextvars.copy_context().run, function, *args), job))
            cancelled: asyncio.CancelledError | None = None
            with anyio.CancelScope(shield=True):  # without it, anyio cancels in each turn of the loop
                while not job.done():
                    try:
                        await asyncio.wait([job])
                    except asyncio.CancelledError as error:
                        cancelled = error
            loop.jobs.discard(job)
            self._job = None
            if cancelled is not None:
                raise cancelled
            value = job.result()()
            _check_plain(function, value)
            return value

        return run


def _check_plain(function: object, value: object = None) -> None:
    """Raise TypeError unless *function* is a plain function, whose result *value* is not a coroutine."""
    coroutines = [given for given in (function, value) if inspect.iscoroutine(given)]
    for coroutine in coroutines:
        coroutine.close()
    if coroutines or inspect.iscoroutinefunction(function):
        raise TypeError("aiolocks.sync runs plain functions, and this one is `async def`: use aiolocks for it")
    if not callable(function):
        raise TypeError(f"aiolocks.sync calls the function itself: pass it as in run(fetch), not {function!r}")


def _do(call: Callable[[], Any], job: "asyncio.Future[Callable[[], Any]]") -> None:
    """Run *call* in its thread, and let *job* have a function that returns its result, or raises its exception."""
    process, found = os.getpid(), Future[Any]()
    try:
        found.set_result(call())
    except Exception as error:
        found.set_exception(error)
    if process == os.getpid():  # and not in a fork of it
        with contextlib.suppress(RuntimeError):  # the loop has ended at exit
            job.get_loop().call_soon_threadsafe(_resolve, job, found.result)


def _resolve(job: "asyncio.Future[Callable[[], Any]]", result: Callable[[], Any]) -> None:
    if not job.done():
        job.set_result(result)


def _refuse_running_loop(of: str) -> None:
    """Raise RuntimeError if an event loop runs in this thread, and name the asynchronous class *of* aiolocks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        f"aiolocks.sync would block the event loop that runs in this thread: use aiolocks.{of} in coroutines and "
        "asynchronous views, or call this in another thread: `await asyncio.to_thread(...)`"
    )
