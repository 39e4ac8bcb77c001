"""Fifty processes of twenty callers ask for one outcome, and two runners are killed: all get the same one."""

import time
from contextlib import ExitStack

import pytest
import redis as redis_sync

from tests.support.lateness import SLACK, assert_within
from tests.support.servers import RedisServer
from tests.support.workers import Worker, spawn

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]

PROCESSES, CALLERS = 50, 20

CALLER = """
import asyncio, os, sys, time
from redis.asyncio import Redis
from aiolocks import Once
async def main(url, callers):
    async with Redis.from_url(url) as redis:
        async def function():
            run = await redis.incr("test:runs")
            if run < 3:
                await redis.rpush("test:runners", os.getpid())
                await asyncio.sleep(600)
            await asyncio.sleep(2)
            return [run, time.monotonic()]
        once = Once(redis, "rates", keep=60, ttl=10)
        print("ready", flush=True)
        while not await redis.exists("test:go"):
            await asyncio.sleep(0.2)
        outcomes = await asyncio.gather(*(once.run(function) for _ in range(int(callers))))
        served = time.monotonic()
        (outcome,) = {tuple(each) for each in outcomes}
        print(*outcome, served, flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


def test_a_thousand_callers_get_one_outcome_though_two_runners_are_killed(server: RedisServer) -> None:
    server.flush()
    with ExitStack() as stack, redis_sync.Redis.from_url(server.url, decode_responses=True) as redis:
        workers: dict[int, Worker] = {}
        for _ in range(PROCESSES):
            worker = stack.enter_context(spawn("-c", CALLER, server.url, str(CALLERS)))
            workers[worker.pid] = worker
            assert worker.line() == "ready"
        redis.set("test:go", 1)
        for killed in (1, 2):
            while redis.llen("test:runners") < killed:
                time.sleep(0.05)
            workers.pop(int(str(redis.lindex("test:runners", -1)))).kill()
        said = [worker.line().split() for worker in workers.values()]
    assert {(run, written) for run, written, _ in said} == {("3", said[0][1])}
    assert len(said) == PROCESSES - 2
    last = max(float(served) for _, _, served in said) - float(said[0][1])
    print(f"the last of {CALLERS * len(said)} callers was served {1000 * last:.0f} ms after the function returned")
    assert_within(last, 0.2 * SLACK)
