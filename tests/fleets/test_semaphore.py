"""A semaphore shared by many processes, some of which are killed at any moment, never gives out a permit too many."""

import asyncio
import random
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aiolocks import Semaphore
from aiolocks.testing import Recorder, check_exclusion, read_history
from aiolocks.testing._history import holds
from tests.support import seeds
from tests.support.lateness import SLACK, assert_within
from tests.support.workers import ACQUIRED, Worker, spawn

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.slow]

PROCESSES = 50
LIMIT = 7
TTL = 2.0
SECONDS = 10.0


async def seconds_until_all_are_free(url: str) -> float:
    """Return how long it takes to get all permits at once, and so that none is left in use."""
    begun = time.monotonic()
    async with Redis.from_url(url) as client:
        semaphore = Semaphore(client, "fleet", LIMIT)
        async with semaphore.hold(permits=LIMIT, timeout=10):
            took = time.monotonic() - begun
        now = await semaphore.statistics()
        assert (now.permits, now.holders) == (0, 0)
    return took


@pytest.mark.timeout(180)
def test_fifty_processes_with_random_kills_never_exceed_the_limit_and_lose_none(redis_url: str, tmp_path: Path) -> None:
    """F8 for permits."""
    dice = random.Random(seeds.seed_of_run())
    log = tmp_path / "log"
    command = ["-m", "tests.faults.support.worker", "share", redis_url, "fleet", str(TTL), str(log), str(LIMIT)]
    killed = killed_holding = 0
    with ExitStack() as stack, closing(Recorder(log)) as history:

        def start() -> None:
            process = stack.enter_context(spawn(*command))
            living[process.pid] = process

        living: dict[int, Worker] = {}
        for _ in range(PROCESSES):
            start()
        for process in living.values():
            assert process.line() == "up"
        ends_at = time.monotonic() + SECONDS
        while time.monotonic() < ends_at:
            time.sleep(dice.uniform(0.0, 0.6))
            holders = [held.start.pid for held in holds(read_history(log)) if held.end is None]
            holders = [pid for pid in holders if pid in living]
            pid = dice.choice(holders) if holders and dice.random() < 0.5 else dice.choice(sorted(living))
            living.pop(pid).kill(history)
            killed += 1
            killed_holding += pid in holders
            start()
        for process in living.values():
            process.process.kill()
        for process in living.values():
            process.kill(history)
        free_after = asyncio.run(seconds_until_all_are_free(redis_url))

    records = read_history(log)
    fences = [record.fence for record in records if record.event == ACQUIRED]
    print(f"{len(fences)} grants, {killed} killed, {killed_holding} of them holding; free after {free_after:.3f} s")
    assert check_exclusion(records, LIMIT) == []
    assert check_exclusion(records, LIMIT - 1), "the limit was reached"
    assert killed_holding > 0
    assert len(set(fences)) == len(fences)
    assert_within(free_after, TTL + SLACK * 0.2)
