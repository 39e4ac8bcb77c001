"""The event loop of this process, in a thread of its own, and the task group of the calls there.

It begins with the first call. It ends at exit, unless threads still run functions for calls. Then it goes on renewing
their leases until the process ends. After a fork or a failure, the next call begins another loop.
"""

import _thread
import asyncio
import atexit
import contextlib
import ctypes
import logging
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, final

import anyio
from anyio.abc import TaskGroup

from ._redis.urls import client_of, close_client

if TYPE_CHECKING:
    from ._manager import LockManager

T = TypeVar("T")

log = logging.getLogger("aiolocks")

_EXIT_GRACE = 3.0
"""Timeout for the end of the loop at exit, in seconds. Waiters leave their queues within 1 s."""

_CLOSE_TIMEOUT = 1.0
"""Timeout for closing clients at exit, in seconds."""

_FAILED = (
    "the event loop of aiolocks.sync has failed: its leases end with their TTL, once no function runs for it in a "
    "thread, and the next call begins another loop"
)


@final
class _Threads(ThreadPoolExecutor):
    """The loop's executor, which it uses to resolve host names. Each function gets a thread of its own.

    Python's own executors refuse functions once the main thread has ended, and other threads still need connections.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = Future[T]()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

        try:
            _thread.start_new_thread(run, ())
        except RuntimeError:  # too many threads, or Python 3.12.0 to 3.12.2 at exit; running it here blocks the loop
            run()
        return future


@final
class Loop:
    """The event loop of this process and its thread. A fork begins its own, and never touches the inherited one."""

    def __init__(self) -> None:
        """Make it, without a thread; `begin` starts that."""
        self._process = os.getpid()
        self.jobs = set[asyncio.Future[Any]]()
        """Functions that run in threads for calls. The exit does not wait for these functions."""
        self._open = 0
        """Number of tasks begun by `start` that have not ended."""
        self._ended = asyncio.Event()
        self._tasks: TaskGroup | None = None
        self.error: BaseException | None = None
        """Why it could not begin, or has failed."""
        self.waiting = dict[object, "queue.SimpleQueue[Callable[[], None] | None]"]()
        """Inboxes of the calls that threads wait for. Other threads change it, so iterate over a copy."""
        # Plain locks: an interrupted wait for an `Event` can raise RuntimeError in place of the interruption.
        self._run_once, self._beginning = threading.Lock(), threading.Lock()
        self._beginning.acquire()
        self._left: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Gets an item once the exit need not wait any longer."""

    def begin(self) -> None:
        """Begin it, if it has not begun, and wait for that. An interrupted call can be made again."""
        if self._tasks is None:
            _thread.start_new_thread(self._run, ())
            with self._beginning:
                if self.error is not None:
                    raise self.error

    def _run(self) -> None:
        if not self._run_once.acquire(blocking=False):
            return  # the call of `begin` that started the thread before this one was interrupted
        threading.current_thread().name = "aiolocks.sync"
        try:
            with asyncio.Runner() as runner:
                try:
                    runner.run(self._main())
                except BaseException as error:
                    self._fail(error)  # now, because the runner waits for functions in threads before it ends
        except BaseException as error:
            if not exiting:  # asyncio ends its executor in a new thread, which the interpreter may refuse at exit
                self._fail(error)
        finally:
            self._left.put(None)

    def _fail(self, error: BaseException) -> None:
        """Let all calls raise RuntimeError. SystemExit in a callback ends a loop, for example."""
        if self.error is not None:
            return
        self.error = error
        if self._tasks is None:
            self._beginning.release()
            return
        log.error("%s", _FAILED, exc_info=error)
        for inbox in self.waiting.copy().values():
            inbox.put(self.check)

    def check(self) -> None:
        """Raise RuntimeError if it has failed."""
        if self.error is not None:
            raise RuntimeError(_FAILED) from self.error

    async def _main(self) -> None:
        sniffio = sys.modules.get("sniffio")
        if sniffio is not None:  # anyio asks it, and it finds the loop by the running task: a callback has none
            sniffio.thread_local.name = "asyncio"
        async with anyio.create_task_group() as tasks:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(_Threads())
            self.closed = loop.is_closed
            # It takes no lock of Python: an interrupted thread could leave that locked, and so block the loop.
            self.post = loop.call_soon_threadsafe
            self._tasks = tasks
            self._beginning.release()
            await self._ended.wait()
            tasks.cancel_scope.cancel()
            self._check_left()
        with anyio.move_on_after(_CLOSE_TIMEOUT):
            for manager in list(managers):
                await close_client(manager.client)

    @property
    def inherited(self) -> bool:
        return self._process != os.getpid()

    def start(self, function: Callable[..., Coroutine[Any, Any, None]], *args: object, name: object = None) -> None:
        """Start a task. Call it in the loop."""
        assert self._tasks is not None
        self._open += 1
        self._tasks.start_soon(self._await, function, args, name=name)

    async def _await(self, function: Callable[..., Coroutine[Any, Any, None]], args: tuple[object, ...]) -> None:
        try:
            await function(*args)
        finally:
            self._open -= 1
            self._check_left()

    def _check_left(self) -> None:
        """Let the exit go on once only tasks are left that wait for functions in threads."""
        if self._ended.is_set() and 0 < self._open <= len(self.jobs):
            self._left.put(None)

    def end(self) -> None:
        """Cancel all calls, so that waiters leave their queues. Leases that are still held expire.

        Nothing can stop a function in a thread, so its lease is renewed until it has ended, or the process has.
        """
        if self._tasks is None or self.error is not None:
            return
        with contextlib.suppress(RuntimeError):  # it has ended
            self.post(self._ended.set)
        with contextlib.suppress(queue.Empty):
            self._left.get(timeout=_EXIT_GRACE)


current: Loop | None = None
_begin_lock = threading.RLock()  # a signal handler can make a call while the loop begins
exiting = False
managers: "weakref.WeakKeyDictionary[LockManager, str]" = weakref.WeakKeyDictionary()
"""The managers that threads use, and their URLs. Their clients are closed at exit."""


def begin() -> Loop:
    """Return the loop of this process, and begin it if there is none."""
    global current
    with _begin_lock:
        if current is None or current.error is not None:
            if exiting:
                raise RuntimeError("aiolocks.sync has ended, because the interpreter is exiting")
            _refuse_green_threads()
            if current is not None:
                _renew_clients()
            current = Loop()
        current.begin()
        return current


def _refuse_green_threads() -> None:
    """Raise RuntimeError if threads are those of gevent or eventlet: the loop would stop them all."""
    for package, patched, what in [
        ("gevent.monkey", "is_module_patched", "threading"), ("eventlet.patcher", "is_monkey_patched", "thread"),
    ]:  # fmt: skip
        if package in sys.modules and getattr(sys.modules[package], patched)(what):
            raise RuntimeError(
                f"aiolocks.sync needs threads of the system, and {package.partition('.')[0]} has replaced them: use "
                "workers that are processes or threads (gunicorn: sync, gthread; Celery: prefork, threads)"
            )


def _at_exit() -> None:
    global current, exiting
    with _begin_lock:
        ending, current, exiting = current, None, True
    if ending is not None:
        ending.end()


def _renew_clients() -> list[object]:
    """Give all clients new connections, as theirs belong to another loop. Return the old ones."""
    before = list[object]()
    for manager, url in list(managers.items()):
        if not url.startswith("memory:"):  # its server is in the client
            client, fresh = vars(manager.client), client_of(url)
            before.append(client.copy())
            client.update(fresh.__dict__)
    return before


def _forked() -> None:
    global current, _begin_lock
    inherited = current, _renew_clients()
    current, _begin_lock = None, threading.RLock()
    # Kept for ever: their destructors would take the parent's sockets out of its selector, which a fork shares.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
