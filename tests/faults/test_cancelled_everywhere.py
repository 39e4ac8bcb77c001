"""A program cancelled in every turn of the loop, from before its first request until after its last answer."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import anyio
import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Semaphore
from tests.faults.support.kinds import Kind, make
from tests.faults.support.residue import wait_until_only_residue

Program = Callable[[Lock | Semaphore], Coroutine[None, None, bool]]

TTL = 5.0
ENOUGH = 5
"""Programs in a row that outran their cancellation: then every turn of theirs has been met."""


async def work() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def in_block(lock: Lock | Semaphore) -> bool:
    async with lock as lease:
        await work()
        lease.check()
    return True


async def by_hand(lock: Lock | Semaphore) -> bool:
    lease = await lock.acquire()
    try:
        await work()
    finally:
        await lease.release()
    return True


async def in_scope(scope: anyio.CancelScope, program: Awaitable[bool]) -> bool:
    """Return whether the program ended; no cancellation of the task may be left."""
    ended, task = False, asyncio.current_task()
    with scope:
        ended = await program
    assert task is not None
    assert not task.cancelling()
    return ended


@pytest.mark.parametrize("contended", [False, True], ids=["free", "contended"])
@pytest.mark.parametrize("program", [in_block, by_hand])
@pytest.mark.parametrize("by", ["task", "scope"])
@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_program_cancelled_in_any_turn_ends_in_that_cancellation_and_leaves_nothing(
    redis: Redis, redis_url: str, kind: Kind, by: str, program: Program, contended: bool
) -> None:
    """F3: at every await of acquire, hold and release; nothing is held or queued, and no cancellation is swallowed."""
    turns = outran = cancelled = 0
    async with Redis.from_url(redis_url) as client, Lock(client, "keeps the session"):
        while outran < ENOUGH:
            holding = await make(kind, redis, "anywhere", ttl=TTL).acquire() if contended else None
            scope, running = anyio.CancelScope(), program(make(kind, client, "anywhere", ttl=TTL))
            task = asyncio.create_task(in_scope(scope, running) if by == "scope" else running)
            for turn in range(turns):
                await asyncio.sleep(0)
                if holding is not None and turn == turns // 2:
                    await holding.release()
            if task.done():
                outran += 1
            else:
                (scope if by == "scope" else task).cancel()
            if holding is not None and not turns:
                await holding.release()
            await asyncio.wait((task,))
            if task.cancelled() or not task.result():
                cancelled += 1
                assert task.cancelled() == (by == "task"), f"in turn {turns}: {task}"
            lease = await make(kind, redis, "anywhere", ttl=TTL).acquire(timeout=2)
            await lease.release()
            turns += 1
    await wait_until_only_residue(redis, within=1.0)
    print(f"{kind.__name__}: {cancelled} cancelled, in {turns} turns")
    assert cancelled > 3
