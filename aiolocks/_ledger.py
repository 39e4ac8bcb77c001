"""Who in this process holds what: open blocks, by the frame that entered them, and each task's leases, newest last.

Pure bookkeeping. A lease taken by hand is kept here as long as its task runs, since `lock.release()` can still name
it; then only the caller's own reference keeps it alive.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from ._lease import Lease

Task = asyncio.Task[Any]

Base = bytes | tuple[bytes, ...]
"""What names something that is held; several names held as one have several."""


# Methods whose frames do not name a block, but the stack that they run for.
_ENTERS, _LEAVES = AsyncExitStack.enter_async_context.__code__, AsyncExitStack.__aexit__.__code__


class Block(Protocol):
    """What an open `async with` is left by."""

    task: Task | None
    """Who entered it."""
    outer: "Block | None"
    """The block around it at the same place."""

    def leave(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        frame: FrameType,
    ) -> Coroutine[Any, Any, None]:
        """End the block that *frame* leaves."""
        ...

    def abandon(self) -> None:
        """Let go of the task: its loop was closed, and it will not go on."""


Place = tuple[object, object]
"""Where a block is: who made it, and the frame that entered it, or the `AsyncExitStack` for which that runs."""


def place(owner: object, frame: FrameType) -> Place:
    """Return the place of an `async with owner` in *frame*."""
    return (owner, frame if frame.f_code is not _ENTERS else frame.f_locals["self"])


@final
class Blocks:
    """The open blocks of a process."""

    def __init__(self) -> None:
        self._open: dict[Place, Block] = {}

    def open(self, place: Place, block: Block) -> None:
        """Note that the body of *block* has begun."""
        block.outer = self._open.get(place)
        self._open[place] = block

    def close(self, owner: object, frame: FrameType) -> Block | None:
        """Return the block of the `async with owner` that *frame* leaves.

        The frame tells, even when another task finalizes a generator; or the `AsyncExitStack` that it runs for. Where
        neither is known (code without Python frames, `pop_all`), the task tells, and else the newest block of the
        running loop is meant: other threads may have blocks of the same owner.
        """
        key = (owner, frame if frame.f_code is not _LEAVES else frame.f_locals["self"])
        block = self._open.pop(key, None)
        if block is None:
            try:
                loop, task = asyncio.get_running_loop(), asyncio.current_task()
            except RuntimeError:  # destroyed after its loop
                return None
            own = [
                (other, block.task is task)
                for other, block in list(self._open.items())
                if other[0] is owner and block.task is not None and block.task.get_loop() is loop
            ]
            if not own:
                return None
            key = next((other for other, mine in reversed(own) if mine), own[-1][0])
            block = self._open.pop(key)
        if block.outer is not None:
            self._open[key] = block.outer
        return block

    def abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Keep no task alive whose *loop* was closed while its blocks were open.

        That they are open is not forgotten: when such a task is destroyed it leaves them, in whatever loop runs then,
        and must not leave another task's instead.
        """
        for key, block in reversed(list(self._open.items())):  # the inner ones before those around them
            if block.task is not None and block.task.get_loop() is loop:
                self._open[key] = _Abandoned(block)


@final
class _Abandoned:
    task: Task | None = None

    def __init__(self, block: Block) -> None:
        block.abandon()
        self.outer: Block | None = None if block.outer is None else _Abandoned(block.outer)

    def abandon(self) -> None:
        pass

    async def leave(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no loop that it could be done in."""


open_blocks = Blocks()


@final
class Ledger:
    """Who is inside what, and took which leases, in one session."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._leases: dict[Task, dict[Lease, Base]] = {}
        self._inside: dict[tuple[Task, bytes], int] = {}

    def in_use(self) -> bool:
        return bool(self._inside) or any(self._leases.values())

    def running(self) -> bool:
        """Whether a task that is inside a block, or took a lease by hand, still runs."""
        return any(not task.done() for task, _ in self._inside) or any(not task.done() for task in self._leases)

    def close(self) -> None:
        """Let go of the tasks that are still running."""
        for task in self._leases:
            task.remove_done_callback(self._task_ended)
        self._leases.clear()
        self._inside.clear()

    def enter(self, task: Task, base: Base, permits: int) -> None:
        if isinstance(base, tuple):
            for one in base:
                self.enter(task, one, permits)
            return
        key = (task, base)
        self._inside[key] = self._inside.get(key, 0) + permits

    def leave(self, task: Task, base: Base, permits: int) -> None:
        if isinstance(base, tuple):
            for one in base:
                self.leave(task, one, permits)
            return
        key = (task, base)
        left = self._inside.pop(key, 0) - permits
        if left > 0:
            self._inside[key] = left

    def inside(self, task: Task | None, base: Base) -> int:
        """Return how many permits of *base*, or of any of several, the open blocks of *task* hold."""
        if isinstance(base, tuple):
            return max(self.inside(task, one) for one in base)
        return self._inside.get((task, base), 0) if task is not None else 0

    def add(self, task: Task, base: Base, lease: "Lease") -> None:
        leases = self._leases.get(task)
        if leases is None:
            leases = self._leases[task] = {}
            task.add_done_callback(self._task_ended)
        leases[lease] = base

    def remove(self, task: Task, lease: "Lease") -> None:
        leases = self._leases.get(task)
        if leases is not None:
            leases.pop(lease, None)

    def newest(self, task: Task | None, base: Base) -> "Lease | None":
        leases = self._leases.get(task, {}) if task is not None else {}
        return next((lease for lease in reversed(leases) if leases[lease] == base), None)

    def _task_ended(self, task: Task) -> None:
        self._leases.pop(task, None)
        self._on_change()
