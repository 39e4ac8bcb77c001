"""A simulated process: an event loop of its own, a connection pool, and clocks that run a little wrong.

It does nothing while it is stopped, and what it was told meanwhile is there when it goes on. When it has crashed, it
never runs again.
"""

import asyncio
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, final

from .world import EPOCH, World

_MOST_TURNS = 20_000
"""Turns of one loop at one instant. More, and it is spinning."""


class _Nothing:
    """A selector without files."""

    def select(self, timeout: float | None = None) -> list[Any]:
        return []


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        loop: Any = kwargs["loop"]
        loop.tasks_made += 1
        self._number = loop.tasks_made
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return int(self._number)


class _InOrder(weakref.WeakSet[Any]):
    """The async generators of a loop: it closes them in the order in which they began, and not by their addresses."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: list[weakref.ref[Any]] = []

    def add(self, item: Any) -> None:
        super().add(item)
        self._begun = [one for one in self._begun if one() is not None] + [weakref.ref(item)]

    def __iter__(self) -> Iterator[Any]:
        return iter([one for one in (begun() for begun in self._begun) if one is not None and one in self])


class ProcessLoop(asyncio.BaseEventLoop):
    """An event loop that the world turns; its clock is the process's own."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.tasks_made = 0
        self.time = clock  # type: ignore[method-assign]
        inner: Any = self
        inner._selector = _Nothing()
        inner._asyncgens = _InOrder()
        inner._clock_resolution = 1e-9
        self.set_task_factory(lambda loop, coro, **options: _Task(coro, loop=loop, **options))

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def turn(self) -> None:
        """Run what is ready and what that makes ready, at one instant."""
        inner: Any = self
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(inner._asyncgen_firstiter_hook, inner._asyncgen_finalizer_hook)
        asyncio._set_running_loop(self)
        try:
            for _ in range(_MOST_TURNS):
                inner._run_once()
                if not inner._ready:
                    return
            raise RuntimeError("the loop does not come to rest")
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def next_timer(self) -> float | None:
        """Return when, by its own clock, the loop wants to run again; it has just dropped cancelled timers."""
        inner: Any = self
        return inner._scheduled[0]._when if inner._scheduled else None


@final
class Process:
    """See the module. *troubles*: what its loop had to complain of."""

    running: "Process | None" = None

    def __init__(self, world: World, pid: int, rate: float) -> None:
        self.world = world
        self.pid = pid
        self.name = f"p{pid}"
        self.alive = True
        self.stopped = False
        self.stops = 0
        self._rate = rate
        self._began = world.now
        self._base = world.rng.uniform(10, 1000)
        self._wall_error = world.rng.uniform(-100, 100)
        self._afterlife = 0.0
        self._asleep = 0.0
        self._asleep_since: float | None = None
        self._due = float("inf")
        self.troubles: list[str] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.loop = ProcessLoop(self.monotonic)
        self.loop.set_exception_handler(self._trouble)

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC, the loop's clock: it stands still while the machine is suspended."""
        now = self.world.now if self._asleep_since is None else self._asleep_since
        return self._base + (now + self._afterlife - self._began - self._asleep) * self._rate

    def boottime(self) -> float:
        """CLOCK_BOOTTIME, by which leases are counted."""
        return self._base + (self.world.now + self._afterlife - self._began) * self._rate

    def wall(self) -> float:
        """Unix time as this machine has it, which nothing may depend on."""
        return EPOCH + self._wall_error + self.world.now * self._rate

    def step_wall_clock(self, seconds: float) -> None:
        self._wall_error += seconds

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.tasks.append(self.loop.create_task(coroutine))
        self.wake()

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Have the loop call back: something has come from outside."""
        if self.alive:
            self.loop.call_soon(callback, *args)
            self.wake()

    def wake(self) -> None:
        if self.alive and not self.stopped:
            self._plan(self.world.now)

    def stop(self, *, suspend: bool) -> None:
        """As by SIGSTOP; *suspend*: with its machine, so that the loop's clock stands still."""
        if self.alive and not self.stopped:
            self.stopped = True
            self.stops += 1
            if suspend:
                self._asleep_since = self.world.now

    def resume(self) -> None:
        if self.alive and self.stopped:
            self.stopped = False
            if self._asleep_since is not None:
                self._asleep += self.world.now - self._asleep_since
                self._asleep_since = None
            self._due = float("inf")
            self.wake()

    def crash(self) -> None:
        self.alive = False

    def leave(self) -> None:
        """Cancel all tasks, wait for them, shut down, and end: as `asyncio.run` does when it is interrupted."""
        for task in sorted(asyncio.all_tasks(self.loop), key=hash):
            task.cancel()
        self.wake()
        self._look_whether_done()

    def _look_whether_done(self) -> None:
        if not self.alive:
            return
        if (busy := bool(asyncio.all_tasks(self.loop))) or self.stopped:
            self.world.after(0.01 if busy else 0.1, self._look_whether_done)
        else:
            _end = self.loop.create_task(self.loop.shutdown_asyncgens())
            with self.acting():
                self.loop.turn()
            self.alive = False

    def left(self) -> list[str]:
        """Return the tasks and timers that are left of what it ran."""
        inner: Any = self.loop
        timers = [repr(timer) for timer in inner._scheduled if not timer.cancelled()]
        return [repr(task) for task in asyncio.all_tasks(self.loop)] + timers

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Have clocks be those of this process, within a block."""
        running, wall = Process.running, self.world.wall
        Process.running, self.world.wall = self, self.wall
        try:
            yield
        finally:
            Process.running, self.world.wall = running, wall

    def _plan(self, when: float) -> None:
        if when < self._due:
            self._due = when
            self.world.at(when, self._step, when)

    def _step(self, due: float) -> None:
        if due != self._due or not self.alive or self.stopped:
            return
        self._due = float("inf")
        with self.acting():
            self.loop.turn()
        timer = self.loop.next_timer()
        if timer is not None and self.alive:
            # A hair later: what is due must be seen to be due, in spite of rounding.
            ahead = max(timer - self.monotonic(), 0.0) / self._rate
            self._plan(self.world.now + ahead + 1e-9)

    def _trouble(self, loop: Any, context: dict[str, Any]) -> None:
        self.troubles.append(f"{context.get('message')}: {context.get('exception')!r}")

    def end(self) -> None:
        """Take it apart as `asyncio.run` does, in a time of its own and cut off from the world."""
        self.alive = False
        self.stopped = False
        asyncio._set_running_loop(None)
        with self.acting():
            self._run_out()
            _end = self.loop.create_task(self.loop.shutdown_asyncgens())
            self.loop.turn()
            self._run_out()
        self.loop.close()

    def _run_out(self) -> None:
        cancelled: set[asyncio.Task[Any]] = set()
        for _ in range(1000):
            tasks = asyncio.all_tasks(self.loop)
            if not tasks:
                return
            for task in sorted(tasks - cancelled, key=hash):
                task.cancel()
            cancelled |= tasks
            self.loop.turn()
            timer = self.loop.next_timer()
            if timer is not None:
                self._afterlife += max(timer - self.monotonic(), 0.0) / self._rate + 1e-9


def lease_clock() -> float:
    """Return the time by which the running process counts its leases; in place of `Context.clock`."""
    process = Process.running
    assert process is not None
    return process.boottime()
