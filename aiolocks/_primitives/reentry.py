"""One lease held several times in this process: each hold is a share, and releasing the last share ends the lease.

The one rule: a share has no time of its own. Its deadline and its loss are the lease's.
"""

import asyncio
import dataclasses
import itertools
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, final

from .._core.events import Kind
from .._core.options import Options
from .._engine.context import Context
from .._engine.holdings import Base
from .._engine.lease import Lease, state_of
from .._engine.lease_state import LeaseState, Runs
from .._engine.release import Release
from .._engine.request import Granted

log = logging.getLogger("aiolocks")

Task = asyncio.Task[Any]


@final
class SharedLease:
    """A lease on the server, and its shares in this process."""

    def __init__(self, lease: Lease, base: bytes) -> None:
        """Take over *lease*, which only this object may release; the running task is the one that acquired it."""
        self.core = core = state_of(lease)
        self.base = base
        self.key = base + b"#" + core.request.token
        """The key under which `Holdings` has the tasks inside a block of this lease; each lease has its own."""
        task = asyncio.current_task()
        self._task = reference = (
            None if task is None else weakref.ref(task)
        )  # weak: a share may be referred to by its result alone
        self._lease = lease  # kept until it is over, or else it would warn
        self._shares: dict[Reentry, None] = {}
        core.call_on_loss(self._lost)
        self._of_name = _nests.setdefault((core.context, base), _OfName())
        self._of_name.add(self)
        self.number = next(_numbers)
        """Leases that were acquired later have larger ones."""
        if task is not None and reference is not None:
            _lineage.set((*_ancestors(task), (reference, self.number)))

    @property
    def task(self) -> "Task | None":
        """The task that acquired the lease; None once that is gone."""
        return None if self._task is None else self._task()

    def share(self, on_lost: str, *, by_hand: bool) -> Lease:
        """Return a hold for the running task. It has the lease's own terms; only *on_lost* may differ."""
        task = asyncio.current_task() if by_hand else None  # a block knows its own task
        share = Reentry(self, task, _like(self.core.options, on_lost))
        self._shares[share] = None
        lease = Lease(share)
        if task is not None:
            self.core.context.holdings.add(task, share, lease)
        return lease

    def held_by(self, task: "Task | None") -> bool:
        """Whether *task* took a share that is not released, or is inside a block with one."""
        if task is None:
            return False  # equivalent: constant, no caller is a callback
        return self.entered_by(task) or any(share.task is task for share in self._shares)

    def entered_by(self, task: "Task | None") -> bool:
        return self.core.context.holdings.inside(task, self.key) > 0

    def let_go(
        self, share: "Reentry", now: float, wait: float | None, then: Callable[[Release], None] | None
    ) -> Release | None:
        """Drop *share*, and end the lease if it was the last one."""
        self._shares.pop(share, None)
        if self._shares:  # defect: P5-shares
            self.renew_for_users_only()
            return None
        self.core.call_on_loss(None)  # or else this object would live until garbage is collected
        self.core.end(now)
        return self.core.release_on_server(now, wait, then)

    @property
    def shares(self) -> int:
        """How many there are."""
        return len(self._shares)

    def hand_off(self, share: "Reentry", now: float) -> None:
        """End the lease here with its only *share*, because another holder goes on with it."""
        self._shares.pop(share, None)
        self.core.call_on_loss(None)  # or else this object would live until garbage is collected
        self.core.hand_off(now)

    def renew_for_users_only(self) -> None:
        """Stop renewing if nothing refers to any share; as long as something does, its user may be at work."""
        core = self.core
        if all(share.unreferenced for share in self._shares) and core.renewer is not None:
            core.stop_renewing()
            core.watch_deadline()

    def _lost(self) -> None:
        core = self.core
        if core.renewer is None and any(share.body is not None for share in self._shares):
            log.warning("%s", core.error())  # the loss of a renewed lease was logged already
        for share in list(self._shares):
            share.note_loss(self.core.reason)


@final
class Reentry(LeaseState):
    """One hold of a shared lease."""

    __slots__ = ("nest", "unreferenced")

    def __init__(self, nest: SharedLease, task: "Task | None", options: Options) -> None:
        core = nest.core
        self.nest = nest
        self.unreferenced = False
        granted, now = Granted(core.fence, core.deadline), core.context.clock()
        super().__init__(
            core.context, core.grantor, nest.key, core.request, options, granted, now, task, of=core.validity
        )

    @property
    def listed_as(self) -> Base:
        return self.nest.base

    @property
    def runs(self) -> Runs:
        return self.nest.core.runs

    def lose(self, reason: str) -> None:
        if not self.over:
            self.nest.core.lose(reason)  # which tells all shares
            self.note_loss(reason)

    @property
    def missed(self) -> bool:
        return False  # the lease warns, once for all shares

    def note_loss(self, reason: str) -> None:
        super().lose(reason)

    def release_on_server(
        self, now: float, wait: float | None = None, then: Callable[[Release], None] | None = None
    ) -> Release | None:
        if not self.on_server:
            return None
        self.on_server = False
        return self.nest.let_go(self, now, wait, then)

    @property
    def shares(self) -> int:
        return self.nest.shares

    def hand_off(self, now: float) -> None:
        super().hand_off(now)
        self.nest.hand_off(self, now)

    def emit_handed_off(self, now: float, kind: Kind) -> None:
        self.nest.core.emit_handed_off(now, kind)

    def let_lapse(self, on_lapsed: "Callable[[LeaseState], None]") -> None:
        self.unreferenced = True
        super().let_lapse(on_lapsed)  # first, as the next line may find that it has lapsed already
        self.nest.renew_for_users_only()

    def emit(self, kind: Kind, seconds: float) -> None:
        if kind == "renewed":  # by hand; the lease reports all else
            self.nest.core.emit(kind, seconds)

    def no_longer_inside(self) -> None:
        pass  # it stays inside until it leaves its block: after a loss, the lock must not be taken again in there


@final
class _OfName:
    """The leases of one name in this process: usually one, and more while blocks of lost leases are still open.

    Each lease keeps this object alive. This object keeps no lease alive.
    """

    __slots__ = ("__weakref__", "_nests")

    def __init__(self) -> None:
        self._nests: list[weakref.ref[SharedLease]] = []

    def add(self, nest: SharedLease) -> None:
        self._nests = [seen for seen in self._nests if seen() is not None]
        self._nests.append(weakref.ref(nest))

    def newest_first(self) -> Iterator[SharedLease]:
        for reference in reversed(self._nests):
            nest = reference()
            if nest is not None:
                yield nest


_nests: "weakref.WeakValueDictionary[tuple[Context, bytes], _OfName]" = weakref.WeakValueDictionary()
"""By name; each entry lives as long as one of its leases."""

_numbers = itertools.count(1)
"""Numbers for leases, in the order in which they were acquired."""

_lineage: "ContextVar[tuple[tuple[weakref.ref[Task], int], ...]]" = ContextVar("aiolocks_nests", default=())
"""The tasks that acquired leases, from the oldest parent to the running task, each with the number of its newest lease.

New tasks get a copy. So a child task sees the number of the newest lease that its parent had when it started the
child."""


def nest_of(context: Context, base: bytes, task: "Task | None") -> SharedLease | None:
    """Return the lease of *base* of which *task* has a hold, or None."""
    return next((nest for nest in _all_of(context, base) if nest.held_by(task)), None)


def held_by_parent(context: Context, base: bytes, task: "Task | None") -> bool:
    """Whether a task that has not ended holds *base*, and held it when it started *task* or a parent of *task*."""
    return any(nest.core.held and _inherited(nest, task) for nest in _all_of(context, base))


def _inherited(nest: SharedLease, task: "Task | None") -> bool:
    """Whether the task that acquired *nest* holds it still, and had it when it started *task* or a parent of *task*."""
    parent = nest.task
    holds = parent is not None and parent is not task and not parent.done() and nest.held_by(parent)
    return holds and any(known() is parent and newest >= nest.number for known, newest in _lineage.get())


def _all_of(context: Context, base: bytes) -> Iterable[SharedLease]:
    of_name = _nests.get((context, base))
    return () if of_name is None else of_name.newest_first()


def _ancestors(task: Task) -> "Iterator[tuple[weakref.ref[Task], int]]":
    """Yield the entries of the lineage for other tasks that have not ended, and so may still hold their leases."""
    for reference, number in _lineage.get():
        other = reference()
        if other is not None and other is not task and not other.done():
            yield reference, number


def _like(options: Options, on_lost: str) -> Options:
    return options if options.on_lost == on_lost else dataclasses.replace(options, on_lost=on_lost)  # type: ignore[arg-type]
