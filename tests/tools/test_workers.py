"""Worker processes of tests: what they record together, and how they end."""

import os
import signal
import time
from pathlib import Path

from aiolocks.testing import Recorder, check_ended, read_history
from tests.support import workers


def test_a_killed_worker_is_recorded_as_dead(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from aiolocks.testing import Recorder\n"
        "Recorder(sys.argv[1]).record('acquired', name='orders')\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    path = tmp_path / "log"
    recorder = Recorder(path)
    with workers.spawn("-c", program, path) as worker:
        assert worker.line() == "ready"
        assert len(check_ended(read_history(path))) == 1
        worker.kill(recorder)
    recorder.close()
    history = read_history(path)
    assert [(event.event, event.pid) for event in history] == [("acquired", worker.pid), ("killed", worker.pid)]
    assert check_ended(history) == []
    assert worker.wait() == -signal.SIGKILL


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
        child = int(worker.line())
        worker.wait_until_stopped()
    assert worker.wait() == -signal.SIGKILL
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
