"""One lease held several times in this process: releasing the last hold ends the lease.

Invariant: a hold has no deadline of its own. Its deadline and its loss are those of the lease.
"""

import asyncio
import dataclasses
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import final

from .._core.events import Kind
from .._core.options import Options
from .._core.untyped import Task
from .._engine.context import Context
from .._engine.holdings import Base
from .._engine.lease import Lease, state_of
from .._engine.lease_state import End, LeaseState, Runs, Share
from .._engine.release import Release

log = logging.getLogger("aiolocks")


@final
class SharedLease:
    """A lease on the server, and its holds in this process.

    State: the holds that are not released. Invariant: the lease ends on the server when the last hold is released.
    """

    def __init__(self, lease: Lease, base: bytes) -> None:
        """Take over *lease*, which only this object may release. The running task has acquired it."""
        self.core = core = state_of(lease)
        self.base = base
        self.key = base + b"#" + core.request.token
        """The key under which `Holdings` lists the tasks inside a block of this lease; each lease has its own."""
        task = asyncio.current_task()
        # Weak, because the result of the task may be the only reference to a hold.
        self.task = reference = None if task is None else weakref.ref(task)
        """The task that acquired the lease."""
        self._lease = lease  # kept until it is over, as a `Lease` warns when it is dropped
        self.holds: dict[Reentry, None] = {}
        core.call_on_loss(self._lost)
        self._of_name = of_name = _leases.setdefault((core.context, base), _OfName())
        of_name[:] = [*(each for each in of_name if each() is not None), weakref.ref(self)]
        self.number = next(_numbers)
        """Leases that were acquired later have larger ones."""
        if task is not None and reference is not None:
            _lineage.set((*_ancestors(task), (reference, self.number)))

    def hold(self, on_lost: str, *, by_hand: bool) -> Lease:
        """Return a hold for the running task. It has the options of the lease, except for *on_lost*."""
        task = asyncio.current_task() if by_hand else None  # a block knows its own task
        options = self.core.options
        if options.on_lost != on_lost:
            options = dataclasses.replace(options, on_lost=on_lost)  # type: ignore[arg-type]
        hold = Reentry(self, task, options)
        self.holds[hold] = None
        lease = Lease(hold)
        if task is not None:
            self.core.context.holdings.add(task, hold, lease)
        return lease

    def held_by(self, task: Task | None) -> bool:
        """Whether *task* acquired a hold that is not released, or is inside a block with one."""
        if task is None:
            return False  # equivalent: constant, no caller is a callback
        return self.entered_by(task) or any(hold.task is task for hold in self.holds)

    def entered_by(self, task: Task | None) -> bool:
        return self.core.context.holdings.inside(task, self.key) > 0

    def release_hold(
        self, hold: "Reentry", now: float, wait: float | None, then: Callable[[Release], None] | None
    ) -> Release | None:
        """Release *hold*, and the lease if it was the last one."""
        self.holds.pop(hold, None)
        if self.holds:  # defect: P5-shares
            self.renew_for_users_only()
            return None
        self.core.call_on_loss(None)  # a reference cycle otherwise
        self.core.end(now)
        return self.core.release_on_server(now, wait, then)

    def hand_off(self, hold: "Reentry", now: float) -> None:
        """End the lease here with its only *hold*, because another holder continues it."""
        self.holds.pop(hold, None)
        self.core.call_on_loss(None)  # a reference cycle otherwise
        self.core.hand_off(now)

    def renew_for_users_only(self) -> None:
        """Stop renewing if nothing refers to any hold. A task that refers to one may still be at work."""
        core = self.core
        if all(hold.unreferenced for hold in self.holds) and core.renewer is not None:
            core.stop_renewing()
            core.watch_deadline()

    def _lost(self) -> None:
        core = self.core
        if not core.worth_warning and any(hold.body is not None for hold in self.holds):
            log.warning("%s", core.error())  # `lose` logs the loss of a lease that is worth a warning
        for hold in list(self.holds):
            hold.note_loss(self.core.validity.reason)


@final
class Reentry(LeaseState):
    """One hold of a shared lease."""

    __slots__ = ("shared", "unreferenced")

    def __init__(self, shared: SharedLease, task: Task | None, options: Options) -> None:
        core = shared.core
        self.shared = shared
        self.unreferenced = False
        now = core.context.clock()
        validity = Share(core.validity, core.request.terms, now, options.max_hold)
        super().__init__(core.context, core.grantor, shared.key, core.request, options, core.fence, validity, task)

    @property
    def listed_as(self) -> Base:
        return self.shared.base

    @property
    def runs(self) -> Runs:
        return self.shared.core.runs

    def lose(self, reason: str) -> None:
        if not self.over:
            self.shared.core.lose(reason)  # which marks all holds as lost
            self.note_loss(reason)

    @property
    def worth_warning(self) -> bool:
        return False  # the lease warns, once for all holds

    def note_loss(self, reason: str) -> None:
        super().lose(reason)

    def release_on_server(
        self, now: float, wait: float | None = None, then: Callable[[Release], None] | None = None
    ) -> Release | None:
        if not self.on_server:
            return None
        self.on_server = False
        return self.shared.release_hold(self, now, wait, then)

    @property
    def shares(self) -> int:
        return len(self.shared.holds)

    def hand_off(self, now: float) -> None:
        super().hand_off(now)
        self.shared.hand_off(self, now)

    def let_lapse(self, on_lapsed: "Callable[[LeaseState], None]") -> None:
        self.unreferenced = True
        super().let_lapse(on_lapsed)  # first, as the next line may find that the lease has ended
        self.shared.renew_for_users_only()

    def emit(self, kind: Kind, seconds: float) -> None:
        if self.validity.end not in (End.LOST, End.REVOKED):  # the lease reports its loss itself
            self.shared.core.emit(kind, seconds)

    def no_longer_inside(self) -> None:
        pass  # it stays inside until it leaves its block, so that it cannot acquire the lock again after a loss


@final
class _OfName(list["weakref.ref[SharedLease]"]):
    """The leases of one name in this process: usually one, but more while blocks of lost leases are open.

    Invariant: each lease keeps this list alive, and the list keeps no lease alive.
    """

    __slots__ = ("__weakref__",)


_leases: "weakref.WeakValueDictionary[tuple[Context, bytes], _OfName]" = weakref.WeakValueDictionary()
"""The leases by client, loop and name. An entry lives as long as one of its leases."""

_numbers = itertools.count(1)
"""Numbers for leases, in the order in which they were acquired."""

_lineage: "ContextVar[tuple[tuple[weakref.ref[Task], int], ...]]" = ContextVar("aiolocks_nests", default=())
"""The tasks that acquired leases, from the oldest parent to the running task, each with the number of its newest lease.

A new task gets a copy, in which the number of its parent stays that of the newest lease when it was started."""


def shared_lease_of(context: Context, base: bytes, task: Task | None) -> SharedLease | None:
    """Return the lease of *base* that *task* holds, or None."""
    return next((shared for shared in _all_of(context, base) if shared.held_by(task)), None)


def held_by_parent(context: Context, base: bytes) -> bool:
    """Whether a task that has not ended holds *base*, and held it when it started the running task or a parent of it.

    The running task itself does not hold it; see `shared_lease_of`.
    """
    for shared in _all_of(context, base):
        parent = None if shared.task is None else shared.task()
        ended = parent is None or parent.done()  # `Holdings` takes note of that a turn later
        inherited = (known() is parent and newest >= shared.number for known, newest in _lineage.get())
        if shared.core.validity.held and not ended and shared.held_by(parent) and any(inherited):
            return True
    return False


def _all_of(context: Context, base: bytes) -> Iterator[SharedLease]:
    """Yield the leases of a name, from the newest to the oldest."""
    for reference in reversed(_leases.get((context, base), ())):
        if (shared := reference()) is not None:
            yield shared


def _ancestors(task: Task) -> "Iterator[tuple[weakref.ref[Task], int]]":
    """Yield the entries of the lineage for other tasks that have not ended, and so may still hold their leases."""
    for reference, number in _lineage.get():
        other = reference()
        if other is not None and other is not task and not other.done():
            yield reference, number
