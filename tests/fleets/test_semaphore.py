"""A semaphore shared by many processes, some of which are killed at any moment, never gives out a permit too many."""

import asyncio
import random
import time
from contextlib import ExitStack
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


class Fleet:
    """The processes that live, all of which take and give back permits of one semaphore."""

    def __init__(self, url: str, log: Path, stack: ExitStack) -> None:
        self._command = ["-m", "tests.faults.support.worker", "share", url, "fleet", str(TTL), str(log), str(LIMIT)]
        self._log = log
        self._stack = stack
        self._history = Recorder(log)
        stack.callback(self._history.close)
        self.living: dict[int, Worker] = {}

    def add(self) -> Worker:
        process = self._stack.enter_context(spawn(*self._command))
        self.living[process.pid] = process
        return process

    def kill(self, pid: int) -> None:
        self.living.pop(pid).kill(self._history)

    def kill_all(self) -> None:
        for process in self.living.values():
            process.process.kill()
        for pid in list(self.living):
            self.kill(pid)

    def holders(self) -> list[int]:
        at_work = (held.start.pid for held in holds(read_history(self._log)) if held.end is None)
        return [pid for pid in at_work if pid in self.living]


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
def test_fifty_processes_with_random_kills_never_exceed_the_limit_and_all_permits_come_back(
    redis_url: str, tmp_path: Path
) -> None:
    """F8 for permits."""
    seed = seeds.seed_of_run()
    dice = random.Random(seed)
    log = tmp_path / "log"
    killed = killed_holding = 0
    with ExitStack() as stack:
        fleet = Fleet(redis_url, log, stack)
        begun = time.monotonic()
        for process in [fleet.add() for _ in range(PROCESSES)]:
            assert process.line() == "up"
        print(f"{PROCESSES} processes up after {time.monotonic() - begun:.1f} s")

        ends_at = time.monotonic() + SECONDS
        while time.monotonic() < ends_at:
            time.sleep(dice.uniform(0.0, 0.6))
            holders = fleet.holders()
            pid = dice.choice(holders) if holders and dice.random() < 0.5 else dice.choice(sorted(fleet.living))
            fleet.kill(pid)
            killed += 1
            killed_holding += pid in holders
            fleet.add()
        fleet.kill_all()
        free_after = asyncio.run(seconds_until_all_are_free(redis_url))

    records = read_history(log)
    fences = [record.fence for record in records if record.event == ACQUIRED]
    print(
        f"{len(fences)} grants, {killed} processes killed, {killed_holding} of them holding; "
        f"all permits back {free_after:.3f} s after the end, with a TTL of {TTL:g} s"
    )
    assert check_exclusion(records, LIMIT) == []
    assert check_exclusion(records, LIMIT - 1), "the limit was reached"
    assert killed_holding > 0
    assert len(set(fences)) == len(fences)
    assert_within(free_after, TTL + SLACK * 0.2)
