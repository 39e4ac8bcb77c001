"""The checkers of what several processes recorded: they must see what is wrong."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support import workers
from tests.support.workers import Record, holds, max_depth, overlaps, read_records


def acquired(at: int, pid: int, token: str = "", permits: int = 1) -> Record:
    return Record(at, pid, "acquired", token or f"t{pid}", at, permits)


def released(at: int, pid: int, token: str = "") -> Record:
    return Record(at, pid, "released", token or f"t{pid}", 0)


def test_holds_one_after_the_other_do_not_overlap() -> None:
    records = [acquired(1, 1), released(2, 1), acquired(3, 2), released(4, 2)]
    assert overlaps(records) == []
    assert max_depth(records) == 1


def test_a_hold_may_begin_in_the_nanosecond_in_which_another_ends() -> None:
    records = [acquired(1, 1), released(2, 1), acquired(2, 2), released(3, 2)]
    assert overlaps(records) == []
    assert max_depth(records) == 1


def test_holds_at_the_same_time_are_reported_as_a_pair() -> None:
    records = [acquired(1, 1), acquired(2, 2), released(3, 1), released(4, 2)]
    assert [(first.pid, second.pid) for first, second in overlaps(records)] == [(1, 2)]
    assert max_depth(records) == 2


def test_a_hold_that_encloses_others_overlaps_each() -> None:
    records = [acquired(1, 1), acquired(2, 2), released(3, 2), acquired(4, 3), released(5, 3), released(6, 1)]
    assert [(first.pid, second.pid) for first, second in overlaps(records)] == [(1, 2), (1, 3)]


def test_a_hold_that_never_ends_overlaps_all_that_follow() -> None:
    records = [acquired(1, 1), acquired(900, 2), released(901, 2)]
    assert len(overlaps(records)) == 1


def test_a_killed_holder_held_until_its_parent_saw_it_dead() -> None:
    killed = Record(5, 1, "killed", "", 0)
    assert overlaps([acquired(1, 1), killed, acquired(6, 2)]) == []
    assert len(overlaps([acquired(1, 1), acquired(4, 2), killed])) == 1


def test_a_loss_ends_a_hold() -> None:
    assert overlaps([acquired(1, 1), Record(2, 1, "lost", "t1", 0), acquired(3, 2)]) == []


def test_one_process_may_hold_twice_and_is_seen_to() -> None:
    records = [acquired(1, 1, "a"), acquired(2, 1, "b"), released(3, 1, "a"), released(4, 1, "b")]
    assert len(overlaps(records)) == 1
    assert [hold.end_ns for hold in holds(records)] == [3, 4]


def test_depth_counts_permits() -> None:
    records = [acquired(1, 1, permits=3), acquired(2, 2, permits=2), released(3, 1), acquired(4, 3), released(5, 2)]
    assert max_depth(records) == 5


def test_the_order_of_the_lines_does_not_matter() -> None:
    records = [released(2, 1), acquired(3, 2), acquired(1, 1), released(4, 2)]
    assert overlaps(records) == []


def test_a_token_acquired_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="acquired twice"):
        holds([acquired(1, 1), acquired(2, 1)])


def test_what_workers_record_is_read_back_in_order_of_time(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tests.support.workers import open_log, record\n"
        "fd = open_log(sys.argv[1])\n"
        "for n in range(200):\n"
        "    record(fd, 'acquired', bytes([n]), n, permits=2)\n"
        "    record(fd, 'released', bytes([n]), n)\n"
        "print('done', flush=True)\n"
    )
    path = tmp_path / "log"
    with workers.spawn("-c", program, path) as one, workers.spawn("-c", program, path) as two:
        assert [one.wait(), two.wait()] == [0, 0]
    records = read_records(path)
    assert len(records) == 800
    assert [record.monotonic_ns for record in records] == sorted(record.monotonic_ns for record in records)
    assert {record.pid for record in records} == {one.pid, two.pid}
    assert max_depth(record for record in records if record.pid == one.pid) == 2
    assert records[0].token == "00"


def test_a_killed_worker_is_recorded_as_dead(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from tests.support.workers import open_log, record\n"
        "record(open_log(sys.argv[1]), 'acquired', 'token', 1)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    path = tmp_path / "log"
    fd = workers.open_log(path)
    with workers.spawn("-c", program, path) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        workers.kill(worker, fd)
    os.close(fd)
    (hold,) = holds(read_records(path))
    assert (hold.pid, hold.token, hold.fence) == (worker.pid, "token", 1)
    assert hold.end_ns is not None
    assert worker.returncode == -signal.SIGKILL


def test_no_worker_survives_its_block_though_stopped_or_forked() -> None:
    program = (
        "import os, signal, time\n"
        "child = os.fork()\n"
        "if child:\n"
        "    print(child, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "time.sleep(60)\n"
    )
    with workers.spawn("-c", program) as worker:
        assert worker.stdout is not None
        child = int(worker.stdout.readline())
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
    assert worker.returncode == -signal.SIGKILL
    assert ended(child)


def ended(pid: int) -> bool:
    """Wait for the end of a process that is not our child; its adopter may be slow to bury it."""
    give_up_at = time.monotonic() + 5
    while time.monotonic() < give_up_at:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False
