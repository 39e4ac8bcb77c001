"""Who in this process holds what: by task, the blocks it is inside of and the leases it took by hand, newest last.

Pure bookkeeping. A lease taken by hand is kept here as long as its task runs, since `lock.release()` can still name
it. Afterwards only the caller's own references keep it; when they are gone it is renewed no more, and `lock.release()`
of any task finds it until it lapses.
"""

import asyncio
import warnings
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from ._lease import Lease
    from ._lease_state import LeaseState
    from ._stop import BodyTask

Task = asyncio.Task[Any]

Base = bytes | tuple[bytes, ...]
"""What names something that is held; several names held as one have several."""


@final
class _OfTask:
    """What one task holds."""

    __slots__ = ("bodies", "inside", "leases")

    def __init__(self) -> None:
        self.leases: dict[LeaseState, Lease] = {}
        self.bodies: dict[BodyTask, None] = {}
        self.inside: dict[bytes, int] = {}
        """Permits of each name, by open blocks whose leases are not over."""


@final
class Ledger:
    """Who is inside what, and took which leases, in one session."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self.blocks = 0
        """How many are open, in whatever task; while there are none, nobody is inside of anything."""
        self._tasks: dict[Task, _OfTask] = {}
        self._dropped: deque[LeaseState] = deque()
        """Whose `Lease` was garbage-collected, not looked at yet."""
        self._unreferenced: dict[Base, dict[LeaseState, float]] = {}
        """The same, newest last, and until when each is remembered: `lock.release()` may find it."""
        self._closed = False

    def in_use(self) -> bool:
        self._forget_old()
        return bool(self._unreferenced) or any(of.inside or of.leases or of.bodies for of in self._tasks.values())

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

    def enter(self, task: Task, body: "BodyTask") -> None:
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

    def leave(self, task: Task, body: "BodyTask") -> None:
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

    def add(self, task: Task, state: "LeaseState", lease: "Lease") -> None:
        (self._tasks.get(task) or self._of(task)).leases[state] = lease

    def remove(self, task: Task, state: "LeaseState") -> None:
        of = self._tasks.get(task)
        if of is not None:
            of.leases.pop(state, None)

    def newest(self, task: Task | None, base: Base) -> "LeaseState | None":
        """Return the newest lease of *base* that *task* took by hand and has not released."""
        of = None if task is None else self._tasks.get(task)
        return None if of is None else next((state for state in reversed(of.leases) if state.listed_as == base), None)

    def dropped(self, state: "LeaseState") -> None:
        """Note, from any thread, that nobody refers to the lease of *state* any more: it is renewed no more."""
        self._dropped.append(state)
        state.session.loop.call_soon_threadsafe(self._look_at_dropped)

    def newest_unreferenced(self, base: Base) -> "LeaseState | None":
        """Return, once, the newest lease of *base* to which nobody refers, also if it has lapsed lately."""
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
            until = max(state.deadline, state.session.clock()) + state.request.ttl
            self._unreferenced.setdefault(state.listed_as, {})[state] = until
            if state.over:  # it has lapsed since: the loop was late
                self._lapsed(state)
            else:
                state.let_lapse(self._lapsed)

    def _lapsed(self, state: "LeaseState") -> None:
        self._on_change()
        if state in self._unreferenced.get(state.listed_as, ()):
            what = f"{state.grantor.kind} {state.grantor.name!r}"
            state.session.loop.call_soon(_warn, what)  # warnings may be errors, and others are told of the loss next

    def _forget_old(self) -> None:
        for base, states in list(self._unreferenced.items()):
            for state, until in list(states.items()):
                if state.session.clock() >= until:
                    del states[state]
            if not states:
                del self._unreferenced[base]

    # Tasks.

    def _of(self, task: Task) -> _OfTask:
        of = self._tasks.get(task)
        if of is None:
            of = _OfTask()
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
