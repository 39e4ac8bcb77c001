"""Web handlers take a lease each and send it to workers, other processes, through a Redis list: one of them goes on."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from aiolocks.testing import check_exclusion, read_history
from tests.support.servers import RedisServer
from tests.support.workers import ACQUIRED, spawn

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.timeout(120)]

JOBS = 100

HANDLER = """
import asyncio, sys
from redis.asyncio import Redis
from aiolocks import Lock
async def main(url):
    async with Redis.from_url(url) as redis:
        for job in range(100):
            lease = await Lock(redis, f"order:{job % 10}", ttl=20).acquire()
            text = await lease.hand_off()
            for _ in range(2):  # a list that delivers a job twice, as many do
                await redis.lpush("test:jobs", f"{job % 10} {lease.fencing_token} {text}")
asyncio.run(main(sys.argv[1]))
"""

WORKER = """
import asyncio, sys
from redis.asyncio import Redis
from aiolocks import LeaseLostError, Lock
from aiolocks.testing import Recorder
async def main(url, log):
    log = Recorder(log)
    async with Redis.from_url(url, socket_timeout=30) as redis:
        while job := await redis.brpop("test:jobs", timeout=3):
            order, before, text = job[1].decode().split()
            try:
                lease = await Lock(redis, f"order:{order}", ttl=20).adopt(text)
            except LeaseLostError:
                log.record("refused", name=f"order:{order}")
                continue
            async with lease:
                log.record("acquired", lease)
                assert lease.fencing_token > int(before)
                await asyncio.sleep(0.005)
                log.record("released", lease)
asyncio.run(main(*sys.argv[1:]))
"""


def test_each_of_a_hundred_jobs_has_exactly_one_adopter(server: RedisServer, tmp_path: Path) -> None:
    server.flush()
    log = tmp_path / "log"
    with ExitStack() as stack:
        workers = [stack.enter_context(spawn("-c", WORKER, server.tcp_url, log)) for _ in range(3)]
        handler = stack.enter_context(spawn("-c", HANDLER, server.tcp_url))
        assert handler.wait(60) == 0
        for worker in workers:
            assert worker.wait(60) == 0
    records = read_history(log)
    adopted = [one for one in records if one.event == ACQUIRED]
    assert len(adopted) == len({one.fence for one in adopted}) == JOBS
    assert len([one for one in records if one.event == "refused"]) == JOBS
    assert check_exclusion(records) == []
    for order in {one.name for one in records}:
        fences = [one.fence for one in adopted if one.name == order]
        assert fences == sorted(fences)
