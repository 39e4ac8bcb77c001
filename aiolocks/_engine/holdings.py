"""Who in this session holds what: for each task, its open blocks and the leases that it took by hand, newest last.

A lease taken by hand is kept here while it lasts and its task runs, because `lock.release()` can still find it by name.
After the task has ended, only the caller's own references keep the lease. When these are gone, it is no longer renewed,
and `lock.release()` in any task finds it. When a lease ends unreleased, only a `Loss` is kept, for another TTL.

`Holdings` is bookkeeping alone. A `BodyTask` also stops its task when the lease is lost.
"""

import asyncio
import heapq
import itertools
import logging
import warnings
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

from .._core.untyped import Task
from . import cancellation
from .cancellation import Cancellation

if TYPE_CHECKING:
    import anyio

    from .context import Grantor
    from .lease_state import LeaseState

log = logging.getLogger("aiolocks")

Base = bytes | tuple[bytes, ...]
"""The key of a name; a lease on several names has several."""


_STEPS = 10
"""Number of steps from the end of a task to the warning that its block is still open. Fixtures, generators and the end
of `asyncio.run` leave such blocks within that time."""

_STEP = 0.1
"""Length of a step in seconds. A step begins when the one before it has ended, so one stop of the whole process uses up
one step only, and the others are left for leaving the block."""


@final
@dataclass(slots=True, eq=False, repr=False)
class BodyTask:
    """The task inside one block, from the grant of its lease until the block is left.

    Its state is `task`, `over`, and `_cancellation`, which a loss begins. Invariant: it refers to no `Lease` and no
    `Block`. The watchdog keeps the `LeaseState`, which keeps this, so a dropped lease would never lapse.
    """

    task: Task | None
    before: int
    """The `cancelling()` of the task when it began to enter (W19)."""
    grantor: "Grantor"
    names: tuple[bytes, ...]
    permits: int
    over: bool = field(default=False, init=False)
    """The task has left the block, or the lease is over, so the task can take the name again."""
    _cancellation: Cancellation | None = field(default=None, init=False)
    _scopes: "tuple[anyio.CancelScope, ...] | None" = field(default=None, init=False)
    """The scopes around the block, whose shields do not count; None until the task is inside."""

    def enter(self) -> None:
        """Note that the task is inside from now on."""
        if self.task is not None:
            known = cancellation.anyio_tasks
            self._scopes = cancellation.scopes_of(self.task) if known is None or self.task in known else ()
            self.grantor.context.holdings.enter(self.task, self)

    def no_longer_inside(self) -> None:
        """Let the task take the name again, because the lease is over. The block is still open."""
        # W12: what was lost before its block was open is not counted, and other blocks of the task are.
        if self.task is not None and self._scopes is not None:
            self.grantor.context.holdings.leave(self.task, self, closes=False)
        self.over = True

    def stop(self) -> None:
        """Cancel the task until it has left the block, because the lease is lost."""
        if self.task is None or self.task.done():
            log.error(
                "%s %r: the lease is lost, but the task that entered its block has ended, so the body cannot be "
                "cancelled. The block will raise LeaseLostError when it is left. Enter the block in the task that does "
                "the work",
                self.grantor.kind, self.grantor.name,
            )  # fmt: skip
        else:
            what = f"the lease of {self.grantor.kind} {self.grantor.name!r} is lost"
            scopes = cancellation.scopes_of(self.task) if self._scopes is None else self._scopes
            self._cancellation = Cancellation(self.task, self.before, scopes, what)

    def task_ended(self) -> None:
        """Note that the task has ended while the block is open."""
        self.task = None
        if self._cancellation is not None:
            self._cancellation.end()
        self._warn_after(_STEPS)

    def leave(self) -> None:
        """Note that the block is left: stop cancelling, and take the sent cancellations back."""
        if self.task is not None:
            self.grantor.context.holdings.leave(self.task, self, closes=True)
        self.over = True
        if self._cancellation is not None:
            self._cancellation.take_back()

    async def sort_out(self, exc: BaseException | None, *, may_wait: bool) -> BaseException | None:
        """After `leave`, return the exception that leaves the block: *exc* without our own cancellation."""
        if self._cancellation is None:
            return exc
        return await self._cancellation.sort_out(exc, may_wait=may_wait)

    def _warn_after(self, steps: int) -> None:
        loop = self.grantor.context.loop
        if self.over or loop.is_closed():
            return
        if steps:
            loop.call_later(_STEP, self._warn_after, steps - 1)
        else:
            log.warning(
                "%s %r: the task that entered a block has ended, and the block is still open: if the lease is lost, "
                "the body cannot be cancelled. Enter the block in the task that does the work",
                self.grantor.kind, self.grantor.name,
            )  # fmt: skip


class Loss(NamedTuple):
    """Leases of one name that ended unreleased; `lock.release()` reports each of them once."""

    until: float
    """When it is forgotten."""
    begun: float
    """When the newest of these leases was granted; its fencing token and the reason of its loss follow."""
    fence: int
    reason: str
    unreported: Counter[tuple[float, int]]
    """Number of losses still to report for each lease, which is identified by the time of its grant and its fencing
    token. Leases of one `RLock` can share both, so a number can exceed 1."""


@final
class _Ledger:
    """What one task holds. One ledger belongs to no task, and has the leases that nothing refers to.

    Invariant: a lease is never in both `leases` and `named`, and those in `leases` are newer than those in `named`.
    """

    __slots__ = ("bodies", "inside", "leases", "losses", "named")

    def __init__(self) -> None:
        self.leases: dict[LeaseState, object] = {}
        """Leases taken since `lock.release()` last searched for a name, each with the `Lease` that its caller got."""
        self.named: dict[Base, dict[LeaseState, object]] = {}
        """The older leases, by name. They are sorted late, as most are released by `lease.release()`."""
        self.losses: dict[Base, Loss] = {}
        """Losses that `lock.release()` has not reported yet, by name."""
        self.bodies: dict[BodyTask, None] = {}
        """Open blocks."""
        self.inside: dict[bytes, int] = {}
        """Permits of each name that open blocks hold, without those of leases that are over."""

    def newest(self, base: Base) -> "LeaseState | None":
        """Return the newest lease of *base*, or None."""
        state = _last(self.leases)
        if state is not None and state.listed_as == base:
            return state
        # Each lease is moved only once, so a release by name takes the same time among any number of leases.
        for other, handle in self.leases.items():
            self.named.setdefault(other.listed_as, {})[other] = handle
        self.leases.clear()
        return _last(self.named.get(base, {}))

    def remove(self, state: "LeaseState") -> bool:
        """Remove *state*; return whether it was there."""
        if self.leases.pop(state, None) is not None:
            return True
        named = self.named.get(state.listed_as)
        if named is None or named.pop(state, None) is None:
            return False
        if not named:
            del self.named[state.listed_as]
        return True


def _last(states: "dict[LeaseState, object]") -> "LeaseState | None":
    """Return the last key. On every call, `reversed` would pass over all entries removed behind that key."""
    if not states:
        return None
    state, handle = states.popitem()
    states[state] = handle
    return state


@final
class Holdings:
    """Who is inside what, and took which leases, in one session.

    Its state is a ledger for each task, and one of leases without references. Invariant: a task has a ledger from its
    first block or lease until it ends.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], on_change: Callable[[], None]
    ) -> None:
        """*on_change* is called when `in_use` may have become False."""
        self._loop = loop
        self._clock = clock
        self._on_change = on_change
        self.blocks = 0
        """Number of open blocks in all tasks."""
        self._tasks: dict[Task, _Ledger] = {}
        self._dropped: deque[LeaseState] = deque()
        """Leases whose `Lease` was garbage-collected, in any thread, and that are not in `_unreferenced` yet."""
        self._unreferenced = _Ledger()
        """Leases without references, newest last. `lock.release()` in any task can find them."""
        self._ends: list[tuple[float, int, _Ledger, LeaseState | Base]] = []
        """Heap of times at which to forget the loss of a name, or a lost lease that awaits its release.

        Invariant: each of these has an entry. Any other entry has no effect when its time comes."""
        self._sequence = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        """Timer for the first entry of `_ends`, or for an earlier one that is no longer there."""
        self._closed = False

    def in_use(self) -> bool:
        """Whether there is an open block, a lease taken by hand, or a loss to report."""
        ledgers = self._unreferenced, *self._tasks.values()
        return any(of.inside or of.leases or of.bodies or of.named or of.losses for of in ledgers)

    def running(self) -> bool:
        """Whether a task runs that is inside a block, or took a lease by hand."""
        return any((of.bodies or of.leases or of.named) and not task.done() for task, of in self._tasks.items())

    def close(self) -> None:
        """Forget all, because the session has ended."""
        self._closed = True
        for task in self._tasks:
            task.remove_done_callback(self._task_ended)  # equivalent: line dropped, a callback left there finds nothing
        self._tasks.clear()
        self._dropped.clear()  # equivalent: line dropped, nothing reads it after that
        self._unreferenced = _Ledger()
        self._ends.clear()
        self._set_timer()

    # Blocks.

    def enter(self, task: Task, body: "BodyTask") -> None:
        """Note that *task* is inside a block from now on."""
        of = self._tasks.get(task) or self._new_ledger(task)
        of.bodies[body] = None
        self.blocks += 1
        if not body.over:  # lost while the loop was blocked
            for one in body.names:
                of.inside[one] = of.inside.get(one, 0) + body.permits

    def leave(self, task: Task, body: "BodyTask", *, closes: bool) -> None:
        """Note that *task* no longer counts as inside. *closes* says whether it has also left the block."""
        of = self._tasks.get(task)
        if of is None:
            return
        if not body.over:
            for one in body.names:
                left = of.inside.pop(one, 0) - body.permits  # equivalent: constant, it was counted before
                if left > 0:
                    of.inside[one] = left
        if closes and of.bodies.pop(body, body) is None:
            self.blocks -= 1

    def inside(self, task: Task | None, base: Base) -> int:
        """Return how many permits of *base* the open blocks of *task* hold: of several names, the largest number."""
        of = None if task is None else self._tasks.get(task)
        if of is None:
            return 0
        return max(of.inside.get(one, 0) for one in base) if isinstance(base, tuple) else of.inside.get(base, 0)

    # Leases taken by hand.

    def add(self, task: Task, state: "LeaseState", handle: object) -> None:
        """Note that *task* took the lease by hand, and keep the *handle* that it got."""
        (self._tasks.get(task) or self._new_ledger(task)).leases[state] = handle

    def remove(self, task: Task, state: "LeaseState") -> None:
        of = self._tasks.get(task)
        if of is not None and of.leases.pop(state, None) is None:
            of.remove(state)

    def newest(self, task: Task | None, base: Base) -> "LeaseState | Loss | None":
        """Return the newest lease of *base* that *task* took by hand and has not released.

        If that lease has ended, return its loss, once. If several have ended, each call returns one of the losses.
        """
        of = None if task is None else self._tasks.get(task)
        return None if of is None else self._newest(of, base)

    def dropped(self, state: "LeaseState") -> None:
        """Note, from any thread, that no reference to the lease is left, so that it is no longer renewed."""
        self._dropped.append(state)
        self._loop.call_soon_threadsafe(self._let_dropped_lapse)

    def newest_unreferenced(self, base: Base) -> "LeaseState | Loss | None":
        """Return, once, the newest lease of *base* without references, or its loss if it lapsed less than a TTL ago."""
        self._let_dropped_lapse()
        found = self._newest(self._unreferenced, base)
        if found is not None and not isinstance(found, Loss):
            self._unreferenced.remove(found)
        return found

    def lost(self, task: Task, state: "LeaseState") -> None:
        """Note that a lease which *task* took by hand has ended unreleased, and keep only its loss."""
        of = self._tasks.get(task)
        if of is None:
            return
        # W16: it keeps waiters out until its holder releases it, or its TTL is over; `release()` needs the state.
        if state.validity.lost and state.request.revoked:
            self._forget_at(self._clock() + state.ttl, of, state)
        elif of.remove(state):
            state.unlisted()
            self._remember(of, state)

    def reported(self, task: Task | None, state: "LeaseState") -> None:
        """Note that *task* knows of this loss, which `lock.release()` then does not report again."""
        of = None if task is None else self._tasks.get(task)
        loss = None if of is None else of.losses.get(state.listed_as)
        lease = state.validity.begun, state.fence
        if of is not None and loss is not None and loss.unreported[lease]:
            self._count_off(of.losses, state.listed_as, lease)

    def _count_off(self, losses: dict[Base, Loss], base: Base, lease: tuple[float, int]) -> None:
        unreported = losses[base].unreported
        unreported[lease] -= 1
        if not unreported[lease]:
            del unreported[lease]
        if not unreported:
            del losses[base]
            self._on_change()

    def _newest(self, of: _Ledger, base: Base) -> "LeaseState | Loss | None":
        state = of.newest(base)
        if of.losses:
            self._forget_ended()  # the loop may be late
            loss = of.losses.get(base)
            # equivalent: <=, leases with the same fencing token are lost together
            if loss is not None and (state is None or (state.validity.begun, state.fence) < (loss.begun, loss.fence)):
                newest, others = (loss.begun, loss.fence), loss.unreported
                self._count_off(of.losses, base, newest if newest in others else next(iter(others)))
                return loss
        return state

    def _let_dropped_lapse(self) -> None:
        while self._dropped:
            state = self._dropped.popleft()
            if self._closed:
                continue
            self._unreferenced.leases[state] = state
            if state.over:  # it has lapsed since, as the loop was late
                self._lapsed(state)
            else:
                state.let_lapse(self._lapsed)

    def _lapsed(self, state: "LeaseState") -> None:
        self._on_change()
        if self._unreferenced.remove(state):
            self._remember(self._unreferenced, state)
            self._loop.call_soon(_warn, state.what)  # later, because a warning may be an exception

    def _remember(self, of: _Ledger, state: "LeaseState") -> None:
        """Keep the loss of *state* for another TTL."""
        until, base, validity = self._clock() + state.ttl, state.listed_as, state.validity
        lease, known = (validity.begun, state.fence), of.losses.get(base)
        loss = Loss(until, *lease, validity.reason, Counter() if known is None else known.unreported)
        loss.unreported[lease] += 1
        if known is not None and (known.begun, known.fence) > lease:
            loss = known._replace(until=until)
        of.losses[base] = loss
        self._forget_at(until, of, base)

    def _forget_at(self, until: float, of: _Ledger, what: "LeaseState | Base") -> None:
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
                of.remove(what)
                what.unlisted()
            elif what in of.losses and of.losses[what].until <= now:  # or a later loss is there
                del of.losses[what]

    # Tasks.

    def _new_ledger(self, task: Task) -> _Ledger:
        of = _Ledger()
        if not self._closed:
            self._tasks[task] = of
            task.add_done_callback(self._task_ended)
        return of

    def _task_ended(self, task: Task) -> None:
        """Forget a task that has ended: its leases are kept only by other references, such as its result."""
        of = self._tasks.pop(task, None)
        if of is not None:
            for state in itertools.chain(of.leases, *of.named.values()):
                state.unlisted()
            self.blocks -= len(of.bodies)
            for body in of.bodies:
                body.task_ended()
            for listed in (of.leases, of.named, of.losses):
                listed.clear()  # entries in `_ends` may refer to the ledger
            self._on_change()


def _warn(what: str) -> None:
    text = "a lease was dropped without being released; it was not renewed any more, and has ended with its TTL"
    warnings.warn(f"{what}: {text}", ResourceWarning, stacklevel=2)  # equivalent: constant, the loop calls it
