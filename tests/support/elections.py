"""Candidates for tests of `Election`: a function that leads, and a task in which an election runs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import final

from aiolocks import Election, Lease
from tests.support.lateness import bounded
from tests.support.primitives import until


@final
class Leading:
    """A function that leads: it notes each term, and works until it is cancelled or `work` ends it."""

    def __init__(self, work: Callable[[Lease], Awaitable[object]] | None = None) -> None:
        self._work = work
        self._elected: asyncio.Queue[Lease] = asyncio.Queue()
        self.terms: list[int] = []
        self.cancelled = 0

    async def __call__(self, lease: Lease) -> object:
        self.terms.append(lease.fencing_token)
        self._elected.put_nowait(lease)
        try:
            return await (asyncio.Event().wait() if self._work is None else self._work(lease))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def elected(self) -> Lease:
        """Wait for the next term."""
        async with bounded(30):
            return await self._elected.get()


@asynccontextmanager
async def running(
    election: Election, lead: Callable[[Lease], Awaitable[object]]
) -> AsyncIterator["asyncio.Task[object]"]:
    """Run *election* in a task of its own, which is cancelled at the end if it has not ended."""
    task = asyncio.create_task(election.run(lead))
    try:
        yield task
    finally:
        while not task.done():  # it may swallow one
            task.cancel()
            await asyncio.wait([task], timeout=0.01)


async def waiting(election: Election, count: int) -> None:
    async def as_many() -> bool:
        return len(await election.waiters()) == count

    await until(as_many)
