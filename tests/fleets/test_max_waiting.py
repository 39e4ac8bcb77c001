"""A waiting room for twenty: of two hundred handlers in four processes the others are answered at once (W26)."""

import asyncio
import json
from contextlib import ExitStack

import pytest
from redis.asyncio import Redis

from aiolocks import Lock
from tests.faults.support.residue import wait_until_only_residue
from tests.support.lateness import SLACK, assert_within
from tests.support.primitives import queued
from tests.support.workers import spawn

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults, pytest.mark.timeout(120)]

PROCESSES, HANDLERS, MAX_WAITING = 4, 50, 20
SOON = 0.05
"""Seconds within which nearly all are answered that may not wait."""

HANDLER = """
import asyncio, json, sys, time
from redis.asyncio import Redis
from aiolocks import Lock, QueueFullError
async def main(url, handlers, most):
    async with Redis.from_url(url) as redis:
        refused, granted = [], 0
        async def handler():
            nonlocal granted
            began = time.monotonic()
            try:
                async with Lock(redis, "room", max_waiting=int(most)):
                    granted += 1
            except QueueFullError as full:
                refused.append(time.monotonic() - began)
                assert full.waiting == int(most)
        async with Lock(redis, "another"):  # connected, as a server is that has been up for a while
            pass
        print("ready", flush=True)
        while not await redis.exists("test:go"):
            await asyncio.sleep(0.02)
        await asyncio.gather(*(handler() for _ in range(int(handlers))))
        print(json.dumps([granted, refused]), flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


async def test_of_200_handlers_twenty_wait_and_the_others_are_answered_at_once(redis: Redis, redis_url: str) -> None:
    with ExitStack() as stack:
        arguments = ("-c", HANDLER, redis_url, str(HANDLERS), str(MAX_WAITING))
        workers = [stack.enter_context(spawn(*arguments)) for _ in range(PROCESSES)]
        for worker in workers:
            assert await asyncio.to_thread(worker.line) == "ready"
        async with Lock(redis, "room", ttl=5):
            await redis.set("test:go", "1")
            await queued(Lock(redis, "room"), MAX_WAITING)
            await asyncio.sleep(1)  # the holder is slow; the others are refused by now
            assert (await Lock(redis, "room").statistics()).waiting == MAX_WAITING
        told = [json.loads(await asyncio.to_thread(worker.line)) for worker in workers]
    await redis.delete("test:go")
    assert sum(granted for granted, _ in told) == MAX_WAITING
    took = sorted(seconds for _, refused in told for seconds in refused)
    assert len(took) == PROCESSES * HANDLERS - MAX_WAITING
    p99 = took[int(0.99 * len(took))]
    print(f"{len(took)} refused: half within {1000 * took[len(took) // 2]:.1f} ms, 99 % within {1000 * p99:.1f} ms")
    assert_within(p99, SOON * SLACK)
    await wait_until_only_residue(redis, within=1.0)
