"""Five candidates under kills, stops, cuts and outages: one leader at most, soon a new one, and all go on standing."""

import asyncio
import os
import random
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median

import pytest

from aiolocks import Election, LockManager
from aiolocks.testing import Recorder, check_exclusion, check_fencing, check_linearizable, read_history
from tests.support import seeds
from tests.support.lateness import SLACK, assert_within
from tests.support.servers import RedisServer
from tests.support.workers import ACQUIRED, KILLED, Worker, spawn

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.slow]

PROCESSES = 5
NAME = "scheduler"
TTL = 1.0
SECONDS = float(os.environ.get("AIOLOCKS_ELECTION_SECONDS", "20"))
FAULTS = ("kill the leader", "stop the leader", "stop a candidate", "cut connections", "restart", "outage")


class Fleet:
    """The candidates, and what happens to them."""

    def __init__(self, stack: ExitStack, server: RedisServer, log: Path) -> None:
        self._stack, self._server, self._log = stack, server, log
        self._history = stack.enter_context(closing(Recorder(log)))
        self.living: dict[int, Worker] = {}

    def start(self) -> None:
        command = ("-m", "tests.faults.support.worker", "stand", self._server.url, NAME, str(TTL), str(self._log))
        worker = self._stack.enter_context(spawn(*command))
        self.living[worker.pid] = worker

    async def strike(self, fault: str, leader: int, dice: random.Random) -> float:
        """Let *fault* happen, and return when it was over."""
        victim = self.living[leader]
        if fault == "kill the leader":
            self.living.pop(leader).kill(self._history)
            self.start()
        elif fault in ("stop the leader", "stop a candidate"):
            if fault == "stop a candidate":
                victim = self.living[dice.choice([pid for pid in self.living if pid != leader])]
            victim.stop()
            await asyncio.sleep(dice.uniform(0.1, 3) * TTL)
            victim.go_on()
        elif fault == "cut connections":
            self._server.operator.client_kill_filter(_type="normal", skipme=True)
            self._server.operator.client_kill_filter(_type="pubsub", skipme=True)
        else:  # its data is lost, so for longer than any lease
            self._server.kill()
            await asyncio.sleep((10 if fault == "outage" else 1.1) * TTL)
            self._server.restart()
        return time.monotonic()


async def seconds_until_led(election: Election, since: float, gone: int = 0) -> tuple[float, int]:
    """Return how long after *since* there is a leader other than the process *gone*, and which."""
    while True:
        leader = await election.leader()
        if leader is not None and leader.pid not in (None, gone):
            return time.monotonic() - since, leader.pid or 0
        assert time.monotonic() < since + 60, "no node leads"
        await asyncio.sleep(0.005)


async def run(fleet: Fleet, url: str, dice: random.Random) -> tuple[Counter[str], list[tuple[float, str]]]:
    """Strike until SECONDS are over, then wait until all stand; return the faults, and how soon a leader followed."""
    faults: Counter[str] = Counter()
    took: list[tuple[float, str]] = []
    async with LockManager.from_url(url, ttl=TTL) as locks:  # whose client retries after its connections were cut
        election = locks.election(NAME)
        _, leader = await seconds_until_led(election, time.monotonic())
        ends_at = time.monotonic() + SECONDS
        while time.monotonic() < ends_at or len(faults) < len(FAULTS):
            while len(await election.waiters()) < PROCESSES - 1:
                await asyncio.sleep(0.01)
            _, leader = await seconds_until_led(election, time.monotonic())
            fault = dice.choice(FAULTS if time.monotonic() < ends_at else [one for one in FAULTS if one not in faults])
            over_at = await fleet.strike(fault, leader, dice)
            faults[fault] += 1
            seconds, leader = await seconds_until_led(election, over_at, leader if fault.startswith("kill") else 0)
            took.append((seconds, fault))
        while len(await election.waiters()) < PROCESSES - 1:
            await asyncio.sleep(0.01)
    return faults, took


@pytest.mark.timeout(180 + 2 * SECONDS)
def test_five_candidates_never_have_two_leaders_and_soon_a_new_one_and_none_stops_standing(
    own_server: RedisServer, tmp_path: Path
) -> None:
    dice, log = random.Random(seeds.seed_of_run()), tmp_path / "log"
    with ExitStack() as stack:
        fleet = Fleet(stack, own_server, log)
        for _ in range(PROCESSES):
            fleet.start()
        faults, took = asyncio.run(run(fleet, own_server.url, dice))
        assert len(fleet.living) == PROCESSES
        assert [worker.process.poll() for worker in fleet.living.values()] == [None] * PROCESSES
        for worker in fleet.living.values():
            worker.process.kill()
    history = read_history(log)
    terms = [event.fence for event in history if event.event == ACQUIRED]
    slowest, fault = max(took)
    typical = median(seconds for seconds, _ in took)
    print(
        f"{dict(faults)}; {len(terms)} terms; a leader after {slowest:.3f} s at most ({fault}), {typical:.3f} s median"
    )
    assert sum(event.event == KILLED for event in history) == faults["kill the leader"]
    assert [*check_exclusion(history), *check_fencing(history), *check_linearizable(history)] == []
    assert len(terms) > faults["kill the leader"] + faults["outage"]
    assert terms == sorted(set(terms))
    assert_within(slowest, TTL + SLACK * 1.0, fault)
