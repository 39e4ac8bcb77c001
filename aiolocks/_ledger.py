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


_EXIT_STACK = (AsyncExitStack.enter_async_context.__code__, AsyncExitStack.__aexit__.__code__)


class Block(Protocol):
    """What an open `async with` is left by."""

    def leave(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        frame: FrameType,
    ) -> Coroutine[Any, Any, None]:
        """End the block that *frame* leaves."""
        ...


@final
class Ledger:
    """The blocks and leases of one session."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._blocks: dict[object, list[tuple[object, Task | None, Block]]] = {}
        self._leases: dict[Task, dict[Lease, bytes]] = {}
        self._inside: dict[tuple[Task, bytes], int] = {}

    def open_block(self, owner: object, frame: FrameType, block: "Block") -> None:
        """Note that an `async with owner` in *frame* is now in its body."""
        self._blocks.setdefault(owner, []).append((_identity(frame), asyncio.current_task(), block))

    def close_block(self, owner: object, frame: FrameType) -> "Block | None":
        """Return the block of the `async with owner` that *frame* leaves.

        The frame tells, even when another task finalizes a generator; or the `AsyncExitStack` that it runs for. Where
        neither is known (code without Python frames, `pop_all`), the task tells, and else the newest block is meant.
        """
        blocks = self._blocks.get(owner)
        if not blocks:
            return None
        if len(blocks) == 1:
            del self._blocks[owner]
            return blocks[0][2]
        task, identity = asyncio.current_task(), _identity(frame)
        best = max(range(len(blocks)), key=lambda at: (blocks[at][0] is identity, blocks[at][1] is task, at))
        return blocks.pop(best)[2]

    def in_use(self) -> bool:
        return bool(self._blocks or self._inside or self._leases)

    def enter(self, task: Task, base: bytes, permits: int) -> None:
        key = (task, base)
        self._inside[key] = self._inside.get(key, 0) + permits

    def leave(self, task: Task, base: bytes, permits: int) -> None:
        key = (task, base)
        left = self._inside.get(key, 0) - permits
        if left > 0:
            self._inside[key] = left
        else:
            self._inside.pop(key, None)

    def inside(self, task: Task | None, base: bytes) -> int:
        """Return how many permits of *base* the open blocks of *task* hold."""
        return self._inside.get((task, base), 0) if task is not None else 0

    def add(self, task: Task, base: bytes, lease: "Lease") -> None:
        leases = self._leases.get(task)
        if leases is None:
            leases = self._leases[task] = {}
            task.add_done_callback(self._task_ended)
        leases[lease] = base

    def remove(self, task: Task, lease: "Lease") -> None:
        leases = self._leases.get(task)
        if leases is not None and leases.pop(lease, None) is not None and not leases:
            del self._leases[task]
            task.remove_done_callback(self._task_ended)

    def newest(self, task: Task | None, base: bytes) -> "Lease | None":
        leases = self._leases.get(task, {}) if task is not None else {}
        return next((lease for lease in reversed(leases) if leases[lease] == base), None)

    def _task_ended(self, task: Task) -> None:
        self._leases.pop(task, None)
        self._on_change()


def _identity(frame: FrameType) -> object:
    """Return what enters and leaves a block: its frame, or the exit stack whose method the frame runs."""
    return frame.f_locals["self"] if frame.f_code in _EXIT_STACK else frame
