"""What several tests of the engine need: a lease, its block, and the task that is in it."""

import asyncio
import gc
import types
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

import anyio
import pytest

from aiolocks import Lease, LeaseLostError
from aiolocks._core.timing import deadline
from aiolocks._engine.acquire import Acquisition
from aiolocks.testing import ScriptedGrantor

T = TypeVar("T")

END = deadline(sent_at=0, ttl=30)
"""When a lease of 30 s ends that was asked for at 0 and is not renewed."""


def this_task() -> "asyncio.Task[object]":
    task = asyncio.current_task()
    assert task is not None
    return task


def later(seconds: float, callback: Callable[..., object], *args: Any) -> None:
    asyncio.get_running_loop().call_later(seconds, callback, *args)


def standing(lease: Lease) -> tuple[bool, bool, float]:
    return lease.held, lease.lost, lease.remaining()


async def until_lost(block: AbstractAsyncContextManager[object]) -> LeaseLostError:
    """Stay in the block until its lease is lost, and return the error."""
    with pytest.raises(LeaseLostError) as caught:
        async with block:
            await anyio.sleep_forever()
    return caught.value


async def run_by_hand(coroutine: Coroutine[Any, Any, None], until: Callable[[], bool]) -> None:
    """Run *coroutine* in this task until the condition is true, and leave it suspended there."""

    @types.coroutine
    def forward() -> Iterator[Any]:
        while True:
            awaited = coroutine.send(None)
            if until():
                return
            yield awaited

    await cast("Awaitable[None]", forward())


async def and_collect(task: "asyncio.Task[T]") -> T:
    """Return what *task* returns, when all that it alone kept is gone."""
    result = await task
    del task
    for _ in range(3):
        await asyncio.sleep(0)  # the loop itself keeps what it called last
    gc.collect()
    return result


class Around:
    """A grantor that does what a stub does, except for what a derived class does otherwise."""

    together = None

    def __init__(self, stub: ScriptedGrantor) -> None:
        self.stub = stub

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stub, name)

    def asking(self, timeout: float | None = None) -> Acquisition:
        asking = self.stub.asking(timeout=timeout)
        grantor: Any = self
        asking.grantor = grantor
        return asking
