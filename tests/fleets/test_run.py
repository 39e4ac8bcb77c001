"""`aiolocks run` on several hosts, played by processes: each is replaced when it dies, and none runs beside another."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from redis import Redis

from aiolocks.testing import check_exclusion, read_history
from tests.support.children import family
from tests.support.lateness import SLACK, assert_within
from tests.support.servers import RedisServer
from tests.support.workers import ACQUIRED, LOST, REPOSITORY, environment

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(180)]

PROCESSES = 5
TTL = 3.0

WORKER = """
import os, signal, sys, time
from types import SimpleNamespace
from aiolocks.testing import Recorder
log, seconds, stubborn = Recorder(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "stubborn"
lease = SimpleNamespace(name="job", token="", fencing_token=int(os.environ["AIOLOCKS_FENCING_TOKEN"]))
if stubborn:
    signal.signal(signal.SIGTERM, lambda *_: None)
log.record("acquired", lease)
began = last = time.monotonic()
while time.monotonic() < began + seconds:
    time.sleep(0.002)
    log.record("alive", lease)
log.record("released", lease)
"""

Process = subprocess.Popen[str]


@contextmanager
def runner(
    server: RedisServer, log: Path, *options: str, seconds: float = 60, stubborn: bool = False
) -> Iterator[Process]:
    """Run a worker under the lock "job", as one host does."""
    command = [sys.executable, "-m", "aiolocks", "run", "job", "--ttl", str(TTL), *options, "--"]
    command += [sys.executable, "-c", WORKER, str(log), str(seconds), "stubborn" if stubborn else "obedient"]
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


def last_signs(log: Path) -> list[tuple[int, int]]:
    """Return of each worker when it began and when it last showed that it was alive, by CLOCK_MONOTONIC."""
    spans: dict[int, tuple[int, int]] = {}
    for one in read_history(log):
        spans[one.pid] = (spans.get(one.pid, (one.monotonic_ns, 0))[0], one.monotonic_ns)
    return sorted(spans.values())


def check_alone(log: Path) -> None:
    """No worker began before the one before it had shown its last sign of life."""
    spans = last_signs(log)
    assert all(end < begin for (_, end), (begin, _) in pairwise(spans)), spans
    fences = [one.fence for one in read_history(log) if one.event == ACQUIRED]
    assert fences == sorted(set(fences))


def test_killed_runners_are_replaced_one_after_the_other(own_server: RedisServer, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ExitStack() as stack:
        hosts = [stack.enter_context(runner(own_server, log)) for _ in range(PROCESSES)]
        waits = []
        for number in range(1, PROCESSES):
            worker = until_acquired(log, number)
            holder = next(host for host in hosts if host.poll() is None and worker in children(host.pid))
            killed_at = time.monotonic()
            holder.kill()
            holder.wait()
            until_acquired(log, number + 1)
            waits.append(time.monotonic() - killed_at)
    check_alone(log)
    print(f"replaced after {max(waits):.2f} s at most, with a TTL of {TTL:g} s")
    assert_within(max(waits), TTL + SLACK)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("stubborn", [False, True], ids=["obedient", "stubborn"])
def test_a_host_whose_server_stands_still_stops_its_command_before_the_next_begins(
    own_server: RedisServer, tmp_path: Path, stubborn: bool
) -> None:
    """The lease runs out, as nothing is renewed; a command that does not heed TERM is killed within the margin."""
    log = tmp_path / "log"
    with ExitStack() as stack:
        for number in (1, 2, 3):
            for _ in range(PROCESSES):  # those who wait give up as well, after a TTL without an answer
                stack.enter_context(runner(own_server, log, stubborn=stubborn))
            until_acquired(log, number)
            own_server.pause()
            time.sleep(1.2 * TTL)
            own_server.resume()
        stack.enter_context(runner(own_server, log))
        until_acquired(log, 4)
    check_alone(log)


def test_of_five_hosts_with_a_cron_like_job_none_runs_beside_another(own_server: RedisServer, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(5):
        with ExitStack() as stack:
            hosts = [
                stack.enter_context(runner(own_server, log, "--wait", "30", seconds=0.05)) for _ in range(PROCESSES)
            ]
            assert [host.wait(60) for host in hosts] == [0] * PROCESSES
    check_alone(log)
    assert check_exclusion(read_history(log)) == []
    assert sum(one.event == ACQUIRED for one in read_history(log)) == 5 * PROCESSES
    assert not any(one.event == LOST for one in read_history(log))
    with closing(Redis.from_url(own_server.url)) as admin:
        assert admin.get("aiolocks:lock:{job}") is None


SLOTS = 20
MIN_HOLD = 5.0


@pytest.mark.long
@pytest.mark.timeout(400)
def test_of_five_hosts_with_one_crontab_one_runs_the_job_in_each_slot(own_server: RedisServer, tmp_path: Path) -> None:
    """Though the job is over long before the slowest of the hosts asks."""
    judged = 0
    options = ("--wait", "0", "--min-hold", str(MIN_HOLD), "--busy-exit", "0")
    with closing(Redis.from_url(own_server.url)) as admin:
        for slot in range(SLOTS):
            log, began = tmp_path / str(slot), time.monotonic()
            with ExitStack() as stack:
                hosts = [stack.enter_context(runner(own_server, log, *options, seconds=0.01)) for _ in range(PROCESSES)]
                assert [host.wait(60) for host in hosts] == [0] * PROCESSES
            runs = sum(one.event == ACQUIRED for one in read_history(log))
            if time.monotonic() < began + MIN_HOLD:  # else this machine was slower than any crontab
                assert runs == 1, f"slot {slot}"
                judged += 1
            while admin.exists("aiolocks:lock:{job}"):
                time.sleep(0.01)
    print(f"{judged} of {SLOTS} slots judged")
    assert judged
