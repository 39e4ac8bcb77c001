"""`aiolocks run` on several hosts, played by processes, while their server stands still: none runs beside another."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from aiolocks.testing import read_history
from tests.support.children import family
from tests.support.lateness import SLACK
from tests.support.servers import RedisServer
from tests.support.workers import ACQUIRED, REPOSITORY, environment

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(180)]

PROCESSES = 5
TTL = 3.0

WORKER = """
import os, signal, sys, time
from types import SimpleNamespace
from aiolocks.testing import Recorder
log, stubborn = Recorder(sys.argv[1]), sys.argv[2] == "stubborn"
lease = SimpleNamespace(name="job", token="", fencing_token=int(os.environ["AIOLOCKS_FENCING_TOKEN"]))
if stubborn:
    signal.signal(signal.SIGTERM, lambda *_: None)
log.record("acquired", lease)
began = time.monotonic()
while time.monotonic() < began + 60:
    time.sleep(0.002)
    log.record("alive", lease)
log.record("released", lease)
"""


@contextmanager
def runner(server: RedisServer, log: Path, stubborn: bool = False) -> Iterator["subprocess.Popen[str]"]:
    """Run a worker under the lock "job", as one host does."""
    command = [sys.executable, "-m", "aiolocks", "run", "job", "--ttl", str(TTL), "--"]
    command += [sys.executable, "-c", WORKER, str(log), "stubborn" if stubborn else "obedient"]
    env = environment({"AIOLOCKS_URL": server.tcp_url})
    with family(*command, env=env, cwd=REPOSITORY, stderr=subprocess.PIPE) as process:
        yield process


def until_acquired(log: Path, count: int, within: float = 20 * SLACK) -> int:
    """Wait for the worker that is the *count*-th to begin; return its process's id."""
    give_up_at = time.monotonic() + within
    while time.monotonic() < give_up_at:
        begun = [one for one in read_history(log) if one.event == ACQUIRED] if log.exists() else []
        if len(begun) >= count:
            return begun[count - 1].pid
        time.sleep(0.01)
    raise AssertionError(f"fewer than {count} began")


def check_alone(log: Path) -> None:
    """No worker began before the one before it had shown its last sign of life."""
    signs: dict[int, list[int]] = {}
    for one in read_history(log):
        signs.setdefault(one.pid, []).append(one.monotonic_ns)
    spans = sorted((times[0], times[-1]) for times in signs.values())
    assert all(end < begin for (_, end), (begin, _) in pairwise(spans)), spans
    fences = [one.fence for one in read_history(log) if one.event == ACQUIRED]
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("stubborn", [False, True], ids=["obedient", "stubborn"])
def test_a_host_whose_server_stands_still_stops_its_command_before_the_next_begins(
    own_server: RedisServer, tmp_path: Path, stubborn: bool
) -> None:
    """The lease runs out, as nothing is renewed; a command that does not heed TERM is killed within the margin."""
    log = tmp_path / "log"
    with ExitStack() as stack:
        for number in (1, 2, 3):
            for _ in range(PROCESSES):  # those who wait give up as well, after a TTL without an answer
                stack.enter_context(runner(own_server, log, stubborn))
            until_acquired(log, number)
            own_server.pause()
            time.sleep(1.2 * TTL)
            own_server.resume()
        stack.enter_context(runner(own_server, log))
        until_acquired(log, 4)
    check_alone(log)
