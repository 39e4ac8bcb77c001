"""A read-write lock under many hands: writers are alone, and nobody starves, for AIOLOCKS_RW_SECONDS."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from aiolocks.testing import check_exclusion, read_history
from tests.support.workers import ALONE, spawn

pytestmark = [pytest.mark.redis, pytest.mark.faults]

SECONDS = float(os.environ.get("AIOLOCKS_RW_SECONDS", "3"))
CROWD = [(25, 1), (25, 1), (25, 1), (25, 2)]
"""Readers and writers of each process."""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_hundred_readers_and_five_writers_in_four_processes(redis_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["-m", "tests.faults.support.worker", "read and write", redis_url, "crowd", "5", str(log)]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(spawn(*command, str(readers), str(writers), str(SECONDS))) for readers, writers in CROWD
        ]
        assert [process.wait(60 + SECONDS) for process in processes] == [0] * len(CROWD)

    records = read_history(log)
    waits: dict[str, list[float]] = {"read": [], "write": []}
    for record in records:
        mode, _, waited_ms = record.event.partition(" ")
        if waited_ms:
            waits[mode].append(float(waited_ms))
    by_readers = [record for record in records if record.permits == 1]
    fences = [record.fence for record in records if record.event == "acquired"]
    p99s = {mode: sorted(times)[int(0.99 * len(times))] for mode, times in waits.items()}
    print(f"{len(waits['read'])} reads, {len(waits['write'])} writes; waits p99 in ms: {p99s}")
    assert not check_exclusion(records, ALONE), "a writer was inside beside another task"
    assert len(set(fences)) == len(fences)
    assert check_exclusion(by_readers, 19), "twenty readers were inside together"
    assert 1 / 3 <= p99s["write"] / p99s["read"] <= 3
