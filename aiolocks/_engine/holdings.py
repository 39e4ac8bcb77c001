"""Who in this session holds what: by task, the blocks it is inside of and the leases it took by hand, newest last.

Pure bookkeeping. A lease taken by hand is kept here as long as its task runs, since `lock.release()` can still name
it. Afterwards only the caller's own references keep it; when they are gone it is renewed no more, and `lock.release()`
of any task finds it until a TTL after it has lapsed.
"""

import asyncio
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast, final

Task = asyncio.Task[Any]

Base = bytes | tuple[bytes, ...]
"""What names something that is held; several names held as one have several."""


class Held(Protocol):
    """What is asked here of a lease that was taken by hand."""

    task: Task | None
    deadline: float

    @property
    def what(self) -> str:
        """For messages."""
        ...

    @property
    def ttl(self) -> float:
        """Seconds."""
        ...

    @property
    def listed_as(self) -> Base:
        """Under which name `release()` of the primitive finds it."""
        ...

    @property
    def over(self) -> bool:
        """It was released, or its loss was noted."""
        ...

    def let_lapse(self, on_lapsed: Callable[[Any], None]) -> None:
        """Renew no more, as no reference to the lease is left."""
        ...


class Inside(Protocol):
    """A task inside of a block."""

    base: Base
    permits: int

    def task_ended(self) -> None:
        """Let go of the task."""


H = TypeVar("H", bound=Held)


@final
class _OfTask(Generic[H]):
    """What one task holds."""

    __slots__ = ("bodies", "inside", "leases")

    def __init__(self) -> None:
        self.leases: dict[H, object] = {}
        """With the handle that the caller got, which lives for as long."""
        self.bodies: dict[Inside, None] = {}
        self.inside: dict[bytes, int] = {}
        """Permits of each name, by open blocks whose leases are not over."""


@final
class Holdings(Generic[H]):
    """Who is inside what, and took which leases, in one session."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], on_change: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._on_change = on_change
        self.blocks = 0
        """How many are open, in whatever task; while there are none, no task is inside of anything."""
        self._tasks: dict[Task, _OfTask[H]] = {}
        self._dropped: deque[H] = deque()
        """Whose `Lease` was garbage-collected, not looked at yet."""
        self._unreferenced: dict[Base, dict[H, float]] = {}
        """The same, newest last, and until when each is remembered: `lock.release()` may find it."""
        self._closed = False

    def in_use(self) -> bool:
        self._forget_old()
        return bool(self._unreferenced) or any(of.inside or of.leases or of.bodies for of in self._tasks.values())

    def forgets_in(self) -> float | None:
        """Return the seconds after which no lease is remembered that its caller has dropped; None if none is now."""
        ends = [until for states in self._unreferenced.values() for until in states.values()]
        return max(ends) - self._clock() if ends else None

    def running(self) -> bool:
        """Whether a task that is inside a block, or took a lease by hand, still runs."""
        return any((of.bodies or of.leases) and not task.done() for task, of in self._tasks.items())

    def close(self) -> None:
        """Let go of the tasks that are still running."""
        self._closed = True
        for task in self._tasks:
            task.remove_done_callback(self._task_ended)
        self._tasks.clear()
        self._dropped.clear()
        self._unreferenced.clear()

    # Blocks.

    def enter(self, task: Task, body: Inside) -> None:
        """Note that *task* is in the body of a block."""
        of = self._tasks.get(task) or self._of(task)
        of.bodies[body] = None
        self.blocks += 1
        base = body.base
        for one in base if isinstance(base, tuple) else (base,):
            of.inside[one] = of.inside.get(one, 0) + body.permits

    def uncount(self, task: Task, base: Base, permits: int) -> None:
        """Note that *task* is inside no more, though its block may be open still."""
        of = self._tasks.get(task)
        if of is not None:
            for one in base if isinstance(base, tuple) else (base,):
                left = of.inside.pop(one, 0) - permits
                if left > 0:
                    of.inside[one] = left

    def leave(self, task: Task, body: Inside) -> None:
        """Note that the block is left."""
        of = self._tasks.get(task)
        if of is not None and of.bodies.pop(body, body) is None:
            self.blocks -= 1

    def inside(self, task: Task | None, base: Base) -> int:
        """Return how many permits of *base*, or of any of several, the open blocks of *task* hold."""
        of = None if task is None else self._tasks.get(task)
        if of is None:
            return 0
        return max(of.inside.get(one, 0) for one in base) if isinstance(base, tuple) else of.inside.get(base, 0)

    # Leases taken by hand.

    def add(self, task: Task, state: H, handle: object) -> None:
        (self._tasks.get(task) or self._of(task)).leases[state] = handle

    def remove(self, task: Task, state: H) -> None:
        of = self._tasks.get(task)
        if of is not None:
            of.leases.pop(state, None)

    def newest(self, task: Task | None, base: Base) -> H | None:
        """Return the newest lease of *base* that *task* took by hand and has not released."""
        of = None if task is None else self._tasks.get(task)
        return None if of is None else next((state for state in reversed(of.leases) if state.listed_as == base), None)

    def dropped(self, state: H) -> None:
        """Note, from any thread, that no reference to the lease of *state* is left: it is renewed no more."""
        self._dropped.append(state)
        self._loop.call_soon_threadsafe(self._look_at_dropped)

    def newest_unreferenced(self, base: Base) -> H | None:
        """Return, once, the newest lease of *base* that no reference is left to, also if it has lapsed lately."""
        self._look_at_dropped()
        self._forget_old()
        states = self._unreferenced.get(base)
        if states is None:
            return None
        state, _ = states.popitem()
        if not states:
            del self._unreferenced[base]
        return state

    def _look_at_dropped(self) -> None:
        while self._dropped:
            state = self._dropped.popleft()
            if self._closed:
                continue
            until = max(state.deadline, self._clock()) + state.ttl
            self._unreferenced.setdefault(state.listed_as, {})[state] = until
            if state.over:  # it has lapsed since: the loop was late
                self._lapsed(state)
            else:
                state.let_lapse(self._lapsed)

    def _lapsed(self, state: H) -> None:
        self._on_change()
        if state in self._unreferenced.get(state.listed_as, ()):
            self._loop.call_soon(_warn, state.what)  # warnings may be errors, and others are told of the loss next

    def _forget_old(self) -> None:
        for base, states in list(self._unreferenced.items()):
            for state, until in list(states.items()):
                if self._clock() >= until:
                    del states[state]
            if not states:
                del self._unreferenced[base]

    # Tasks.

    def _of(self, task: Task) -> _OfTask[H]:
        of: _OfTask[H] | None = self._tasks.get(task)
        if of is None:
            of = cast("_OfTask[H]", _OfTask())  # _OfTask[H]() takes three times as long
            if not self._closed:
                self._tasks[task] = of
                task.add_done_callback(self._task_ended)
        return of

    def _task_ended(self, task: Task) -> None:
        """Keep no finished task: its result, or the traceback of its exception, may be all that refers to a lease."""
        of = self._tasks.pop(task, None)
        if of is not None:
            for state in of.leases:
                state.task = None
            self.blocks -= len(of.bodies)
            for body in of.bodies:
                body.task_ended()
            self._on_change()


def _warn(what: str) -> None:
    text = "a lease was dropped without being released; it was not renewed any more, and has ended with its TTL"
    warnings.warn(f"{what}: {text}", ResourceWarning, stacklevel=2)
