"""Who in this session holds what: by task, the blocks it is inside of and the leases it took by hand, newest last.

Pure bookkeeping. A lease taken by hand is kept here while it lasts and its task runs, because `lock.release()` can
still find it by name. After the task has ended, only the caller's own references keep the lease. When these are gone,
it is no longer renewed, and `lock.release()` in any task finds it. When a lease ends unreleased, only a `Loss` is kept,
for another TTL.
"""

import asyncio
import heapq
import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast, final

Task = asyncio.Task[Any]

Base = bytes | tuple[bytes, ...]
"""What names something that is held; several names held as one have several."""


class Held(Protocol):
    """What is asked here of a lease that was taken by hand."""

    fence: int

    @property
    def begun(self) -> float:
        """When it was granted, by the clock of this process."""
        ...

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

    @property
    def reason(self) -> str:
        """Why it is lost."""
        ...

    @property
    def awaits_release(self) -> bool:
        """Its loss was noted, but it keeps waiters out until it is released, or ends on the server."""
        ...

    def unlisted(self) -> None:
        """Note that it is no longer listed under a task."""

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


class Loss(NamedTuple):
    """Leases of one name that ended unreleased; `lock.release()` reports each of them once."""

    until: float
    """When it is forgotten."""
    begun: float
    """When the newest of these leases was granted."""
    fence: int
    """Its fencing token."""
    reason: str
    """Why it was lost."""
    times: int
    """Number of losses still to report."""


@final
class _Ledger(Generic[H]):
    """What one task holds. One ledger belongs to no task: it has the leases that nothing refers to.

    Invariant: a lease is never in both `leases` and `named`, and those in `leases` are newer than those in `named`.
    """

    __slots__ = ("bodies", "inside", "leases", "losses", "named")

    def __init__(self) -> None:
        self.leases: dict[H, object] = {}
        """Leases taken since `lock.release()` last had to search. Each keeps the handle that its caller got alive."""
        self.named: dict[Base, dict[H, object]] | None = None
        """The older leases, by name. They are sorted late: most are released by `lease.release()`, without the name."""
        self.losses: dict[Base, Loss] | None = None
        """Losses that `lock.release()` has not reported yet, by name."""
        self.bodies: dict[Inside, None] = {}
        self.inside: dict[bytes, int] = {}
        """Permits of each name, by open blocks whose leases are not over."""

    def states(self) -> Iterator[H]:
        yield from self.leases
        for states in (self.named or {}).values():
            yield from states

    def clear(self) -> None:
        self.leases.clear()
        self.named = self.losses = None

    def newest(self, base: Base) -> H | None:
        state = _last(self.leases)
        if state is not None and state.listed_as == base:
            return state
        self._sort()
        return _last({} if self.named is None else self.named.get(base, {}))

    def _sort(self) -> None:
        """Move all leases to `named`. Each is moved only once, so a release by name costs the same among any number."""
        if self.leases:
            named = self.named = {} if self.named is None else self.named
            for state, handle in self.leases.items():
                named.setdefault(state.listed_as, {})[state] = handle
            self.leases.clear()

    def strike(self, state: H) -> bool:
        """Remove *state*; return whether it was there."""
        if self.leases.pop(state, None) is not None:
            return True
        named = None if self.named is None else self.named.get(state.listed_as)
        if self.named is None or named is None or named.pop(state, None) is None:
            return False
        if not named:
            del self.named[state.listed_as]
        return True


def _last(states: dict[H, object]) -> H | None:
    """Return the last key. `reversed` would pass over all removed entries behind it, on every call."""
    if not states:
        return None
    state, handle = states.popitem()
    states[state] = handle
    return state


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
        self._tasks: dict[Task, _Ledger[H]] = {}
        self._dropped: deque[H] = deque()
        """Whose `Lease` was garbage-collected, not looked at yet."""
        self._unreferenced: _Ledger[H] = _Ledger()
        """Leases that nothing refers to any more, newest last. `lock.release()` in any task may find them."""
        self._ends: list[tuple[float, int, _Ledger[H], H | Base]] = []
        """Heap of what to forget at which time: the loss of a name, or a lost lease that awaits its release.

        Invariant: each of these has an entry. An entry for anything else has no effect when its time comes."""
        self._sequence = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        """Timer for the first entry of `_ends`, or for an earlier one that is no longer there."""
        self._closed = False

    def in_use(self) -> bool:
        return any(
            of.inside or of.leases or of.bodies or of.named or of.losses
            for of in (self._unreferenced, *self._tasks.values())
        )

    def running(self) -> bool:
        """Whether a task that is inside a block, or took a lease by hand, still runs."""
        return any((of.bodies or of.leases or of.named) and not task.done() for task, of in self._tasks.items())

    def close(self) -> None:
        """Let go of the tasks that are still running."""
        self._closed = True
        for task in self._tasks:
            task.remove_done_callback(self._task_ended)  # equivalent: line dropped, a callback left there finds nothing
        self._tasks.clear()
        self._dropped.clear()  # equivalent: line dropped, nothing reads it after that
        self._unreferenced = _Ledger()
        self._ends.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

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
                left = of.inside.pop(one, 0) - permits  # equivalent: constant, it was counted before
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
        if of is not None and of.leases.pop(state, None) is None:
            of.strike(state)

    def newest(self, task: Task | None, base: Base) -> H | Loss | None:
        """Return the newest lease of *base* that *task* took by hand and has not released.

        If that lease has ended, return its loss, once. If several have ended, each call returns one of the losses.
        """
        of = None if task is None else self._tasks.get(task)
        return None if of is None else self._newest(of, base)

    def dropped(self, state: H) -> None:
        """Note, from any thread, that no reference to the lease of *state* is left: it is renewed no more."""
        self._dropped.append(state)
        self._loop.call_soon_threadsafe(self._look_at_dropped)

    def newest_unreferenced(self, base: Base) -> H | Loss | None:
        """Return, once, the newest lease of *base* that nothing refers to; or its loss, if it lapsed within a TTL."""
        self._look_at_dropped()
        found = self._newest(self._unreferenced, base)
        if found is not None and not isinstance(found, Loss):
            self._unreferenced.strike(found)
        return found

    def lost(self, task: Task, state: H) -> None:
        """Note that a lease which *task* took by hand has ended: if it was not released, only its loss is kept."""
        of = self._tasks.get(task)
        if of is None:
            return
        if state.awaits_release:  # W16: `lock.release()` lets the next waiter in, and needs the state for that
            self._forget_at(self._clock() + state.ttl, of, state)
        elif of.strike(state):
            state.unlisted()
            self._remember(of, state)

    def reported(self, task: Task | None, state: H) -> None:
        """Note that *task* knows of this loss, so that `lock.release()` does not report it again."""
        of = None if task is None else self._tasks.get(task)
        if of is not None and of.losses:
            loss = of.losses.get(state.listed_as)
            if loss is not None and (loss.fence == state.fence or loss.times > 1):
                self._count_off(of.losses, state.listed_as, loss)

    def _count_off(self, losses: dict[Base, Loss], base: Base, loss: Loss) -> None:
        """Note that one more loss of *base* was reported."""
        if loss.times > 1:
            losses[base] = loss._replace(times=loss.times - 1)
        else:
            del losses[base]
            self._on_change()

    def _newest(self, of: _Ledger[H], base: Base) -> H | Loss | None:
        state = of.newest(base)
        if of.losses:
            self._forget_ended()  # the loop may be late
            loss = of.losses.get(base)
            if loss is not None and (state is None or (state.begun, state.fence) < (loss.begun, loss.fence)):
                self._count_off(of.losses, base, loss)
                return loss
        return state

    def _look_at_dropped(self) -> None:
        while self._dropped:
            state = self._dropped.popleft()
            if self._closed:
                continue
            self._unreferenced.leases[state] = state
            if state.over:  # it has lapsed since: the loop was late
                self._lapsed(state)
            else:
                state.let_lapse(self._lapsed)

    def _lapsed(self, state: H) -> None:
        self._on_change()
        if self._unreferenced.strike(state):
            self._remember(self._unreferenced, state)
            self._loop.call_soon(_warn, state.what)  # warnings may be errors, which must not keep others from the loss

    def _remember(self, of: _Ledger[H], state: H) -> None:
        """Keep the loss of *state* for another TTL."""
        until, base = self._clock() + state.ttl, state.listed_as
        losses = of.losses = {} if of.losses is None else of.losses
        earlier = losses.get(base)
        losses[base] = Loss(until, state.begun, state.fence, state.reason, 1 if earlier is None else 1 + earlier.times)
        self._forget_at(until, of, base)

    def _forget_at(self, until: float, of: _Ledger[H], what: H | Base) -> None:
        heapq.heappush(self._ends, (until, next(self._sequence), of, what))
        if self._timer is None or self._ends[0][0] == until:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ends and not self._loop.is_closed():
            self._timer = self._loop.call_later(max(self._ends[0][0] - self._clock(), 0.0), self._wake)

    def _wake(self) -> None:
        self._forget_ended()
        self._set_timer()
        self._on_change()

    def _forget_ended(self) -> None:
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, _, of, what = heapq.heappop(self._ends)
            if not isinstance(what, (bytes, tuple)):
                of.strike(what)
                what.unlisted()
            elif of.losses and what in of.losses and of.losses[what].until <= now:  # else a later loss has replaced it
                del of.losses[what]

    # Tasks.

    def _of(self, task: Task) -> _Ledger[H]:
        of: _Ledger[H] | None = self._tasks.get(task)
        if of is None:
            of = cast("_Ledger[H]", _Ledger())  # _Ledger[H]() takes three times as long
            if not self._closed:
                self._tasks[task] = of
                task.add_done_callback(self._task_ended)
        return of

    def _task_ended(self, task: Task) -> None:
        """Keep no finished task: its result, or the traceback of its exception, may be all that refers to a lease."""
        of = self._tasks.pop(task, None)
        if of is not None:
            for state in of.states():
                state.unlisted()
            self.blocks -= len(of.bodies)
            for body in of.bodies:
                body.task_ended()
            of.clear()  # entries in `_ends` may refer to it
            self._on_change()


def _warn(what: str) -> None:
    text = "a lease was dropped without being released; it was not renewed any more, and has ended with its TTL"
    warnings.warn(f"{what}: {text}", ResourceWarning, stacklevel=2)  # equivalent: constant, the loop calls it
