"""A program cancelled in every turn of the loop, from before its first request until after its last answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import anyio
import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Semaphore
from tests.faults.support.kinds import Kind, make
from tests.faults.support.residue import wait_until_only_residue

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]

By = Literal["task", "scope"]

TTL = 5.0
ENOUGH = 5
"""Programs in a row that outran their cancellation: then every turn of theirs has been met."""


class Program:
    """Acquire, work and release once, in a block or by hand, to be cancelled after so many turns of the loop."""

    def __init__(self, lock: Lock | Semaphore, by: By, *, block: bool) -> None:
        self._lock = lock
        self._scope = anyio.CancelScope()
        self.ended = False
        self.pending = 0
        run = self._in_block if block else self._by_hand
        self.task = asyncio.create_task(self._in_scope(run) if by == "scope" else run())
        self.cancel = self._scope.cancel if by == "scope" else self.task.cancel

    async def _in_scope(self, run: Callable[[], Awaitable[None]]) -> None:
        with self._scope:
            await run()
        self.pending = self.task.cancelling()

    async def _in_block(self) -> None:
        async with self._lock as lease:
            await self._work()
            lease.check()
        self.ended = True

    async def _by_hand(self) -> None:
        held = await self._lock.acquire()
        try:
            await self._work()
        finally:
            await held.release()
        self.ended = True

    async def _work(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.mark.parametrize("contended", [False, True], ids=["free", "contended"])
@pytest.mark.parametrize("block", [True, False], ids=["block", "by hand"])
@pytest.mark.parametrize("by", ["task", "scope"])
@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_program_cancelled_in_any_turn_ends_in_that_cancellation_and_leaves_nothing(
    redis: Redis, redis_url: str, kind: Kind, by: By, block: bool, contended: bool
) -> None:
    """F3: at every await of acquire, hold and release; nothing is held or queued, and no cancellation is swallowed."""
    turns = outran = cancelled = 0
    async with Redis.from_url(redis_url) as client, Lock(client, "keeps the session"):
        while outran < ENOUGH:
            holding = await make(kind, redis, "anywhere", ttl=TTL).acquire() if contended else None
            program = Program(make(kind, client, "anywhere", ttl=TTL), by, block=block)
            for turn in range(turns):
                await asyncio.sleep(0)
                if holding is not None and turn == turns // 2:
                    await holding.release()
            if program.task.done():
                outran += 1
            else:
                program.cancel()
            if holding is not None and not turns:
                await holding.release()
            await asyncio.wait((program.task,))
            if not program.ended:
                cancelled += 1
                assert program.task.cancelled() == (by == "task"), f"in turn {turns}: {program.task}"
            assert program.pending == 0
            lease = await make(kind, redis, "anywhere", ttl=TTL).acquire(timeout=2)
            await lease.release()
            turns += 1
    await wait_until_only_residue(redis, within=1.0)
    print(f"{kind.__name__}: {cancelled} cancelled, in {turns} turns")
    assert cancelled > 3
