"""Processes that take random ones of the same names together: each name has one holder, and none waits for ever."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis

from aiolocks.testing import check_exclusion, read_history
from tests.support import seeds
from tests.support.leftovers import is_residue
from tests.support.workers import ACQUIRED, spawn

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.slow]

PROCESSES = 8
NAMES = 10
SECONDS = float(os.environ.get("AIOLOCKS_FLEET_SECONDS", "4"))
"""The nightly run takes 20."""


@pytest.mark.timeout(120)
def test_eight_processes_with_random_names_exclude_each_other_and_all_go_on(redis_url: str, tmp_path: Path) -> None:
    seed = seeds.seed_of_run()
    log = tmp_path / "log"
    command = ("-m", "tests.faults.support.worker", "several", redis_url, "fleet", "2", log, str(NAMES), str(SECONDS))
    with ExitStack() as stack:
        processes = [stack.enter_context(spawn(*command, f"{seed}-{number}")) for number in range(PROCESSES)]
        assert [process.wait(60 + SECONDS) for process in processes] == [0] * PROCESSES

    records = read_history(log)
    assert check_exclusion(records) == []
    names = {record.name for record in records}
    assert len(names) == NAMES
    for name in names:
        fences = [record.fence for record in records if (record.event, record.name) == (ACQUIRED, name)]
        assert fences == sorted(set(fences))
    with Redis.from_url(redis_url) as operator:
        assert [key for key in operator.scan_iter("aiolocks:multi:*") if not is_residue(bytes(key))] == []
