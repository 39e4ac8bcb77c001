"""A semaphore that many processes share is paused: none gets a permit, and all go on as soon as it ends."""

import asyncio
import time
from contextlib import ExitStack, closing
from math import inf
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


async def pause(url: str) -> tuple[int, int]:
    """Pause it. Return between which two instants that was done, in µs by the clock of the host and of its Redis."""
    async with Redis.from_url(url) as client:
        asked = time.time_ns() // 1000
        assert await Semaphore(client, "fleet", None).pause(PAUSE) == PAUSE
        return asked, time.time_ns() // 1000


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ttl", [1.2, 30.0])
def test_no_process_gets_a_permit_in_a_pause_and_each_one_after_it(redis_url: str, tmp_path: Path, ttl: float) -> None:
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
            asked, answered = asyncio.run(pause(redis_url))
            time.sleep(PAUSE + 0.5)
            lasts_us, give_up_at, soonest, grants = round(PAUSE * 1e6), time.monotonic() + 10, [inf], []
            while inf in soonest and time.monotonic() < give_up_at:
                time.sleep(0.2)
                grants = [each for each in read_history(log) if each.event == ACQUIRED]
                after = [each for each in grants if each.fence > answered]
                soonest = [min((each.fence for each in after if each.pid == one.pid), default=inf) for one in living]
            assert inf not in soonest
            # A fencing token is the server's time of the grant.
            assert not [each for each in grants if answered < each.fence < asked + lasts_us - 2_000]
            first.append((min(soonest) - answered - lasts_us) / 1e6)
            every.append((max(soonest) - answered - lasts_us) / 1e6)
        for process in living:
            process.kill(history)
    print(f"the first grant {max(first) * 1e3:.0f} ms after the end, one of each process {max(every) * 1e3:.0f} ms")
    assert check_exclusion(read_history(log), LIMIT) == []
    assert_within(max(first), SLACK * 0.05)
    assert_within(max(every), SLACK * 0.5)
