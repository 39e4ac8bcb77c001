"""A semaphore that many processes share is paused: none gets a permit, and all go on as soon as it ends."""

import asyncio
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aiolocks import Semaphore
from aiolocks.testing import Recorder, check_exclusion, read_history
from tests.support.lateness import SLACK, assert_within
from tests.support.workers import ACQUIRED, Worker, spawn

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.slow]

PROCESSES = 6
LIMIT = 3
PAUSE = 1.5
_QUIET_NS = 50_000_000
"""From the grant on the server until its holder has written it down."""


async def pause(url: str) -> int:
    async with Redis.from_url(url) as client:
        asked = time.monotonic_ns()
        assert await Semaphore(client, "fleet", None).pause(PAUSE) == PAUSE
        return asked


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ttl", [0.4, 30.0])
def test_no_process_gets_a_permit_during_a_pause_and_each_gets_one_soon_after(
    redis_url: str, tmp_path: Path, ttl: float
) -> None:
    """Also where leases end before the pause does, so that waiters look more often."""
    log = tmp_path / "log"
    command = ["-m", "tests.faults.support.worker", "share", redis_url, "fleet", str(ttl), str(log), str(LIMIT)]
    first, every = list[float](), list[float]()
    with ExitStack() as stack, closing(Recorder(log)) as history:
        living: list[Worker] = [stack.enter_context(spawn(*command)) for _ in range(PROCESSES)]
        for process in living:
            assert process.line() == "up"
        for _ in range(3):
            time.sleep(0.3)
            asked = asyncio.run(pause(redis_url))
            time.sleep(PAUSE + 0.7)
            ends = asked + round(PAUSE * 1e9)
            grants = [each for each in read_history(log) if each.event == ACQUIRED]
            during = [each for each in grants if asked + _QUIET_NS < each.monotonic_ns < ends - 2_000_000]
            assert during == [], "nothing is granted during a pause"
            after = [each for each in grants if each.monotonic_ns > ends]
            first.append((min(each.monotonic_ns for each in after) - ends) / 1e9)
            soonest = [min(each.monotonic_ns for each in after if each.pid == one.pid) for one in living]
            every.append((max(soonest) - ends) / 1e9)
        for process in living:
            process.kill(history)
    print(f"the first grant {max(first) * 1e3:.0f} ms after the end, one of each process {max(every) * 1e3:.0f} ms")
    assert check_exclusion(read_history(log), LIMIT) == []
    assert_within(max(first), SLACK * 0.05)
    assert_within(max(every), SLACK * 0.5)
