"""`aiolocks run` on Linux: with a lost lease, all end that descend from the command, in whatever session; no others."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from aiolocks.cli import main
from tests.support.lateness import SLACK
from tests.support.servers import RedisServer
from tests.surface import commands
from tests.surface.commands import Process
from tests.surface.test_run import alive, lose, result, said, wait_until

pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the process group ends, and no more"),
    pytest.mark.rest,
]

SESSION = "setsid sleep 60 >/dev/null 2>&1 & echo $!"
"""Prints the pid of a process that leaves the group of the command."""

DAEMON = "setsid sh -c 'sleep 60 >/dev/null 2>&1 & echo $!'"
"""The same of one whose parents have ended, as those of a daemon have."""


@contextmanager
def running(server: RedisServer, command: str, *options: str, before: str = "") -> Iterator[Process]:
    """Run a line of the shell under the lock "tree", in the process of a shell that has run the line *before*."""
    arguments = ("tree", *options, "--", "sh", "-c", command)
    with commands.running(server.tcp_url, *arguments, before=before) as process:
        yield process


@pytest.fixture
def pids() -> Iterator[list[int]]:
    started: list[int] = []
    yield started
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stat(pid: int | str) -> tuple[int, str]:
    """Return the parent and the state of a process; 0 and no state if it has gone."""
    with suppress(OSError):
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(parent), state
    return 0, ""


def children(pid: int) -> dict[int, str]:
    every = {int(process.name): stat(process.name) for process in Path("/proc").glob("[0-9]*")}
    return {number: state for number, (parent, state) in every.items() if parent == pid}


@pytest.mark.parametrize(
    "command", [SESSION, DAEMON, f"env -i PATH=$PATH {DAEMON}"], ids=["session", "daemon", "without environment"]
)
@pytest.mark.parametrize("ignored", ["", "TERM"])
def test_a_lost_lease_ends_a_process_that_has_left_the_group_of_the_command(
    server: RedisServer, pids: list[int], command: str, ignored: str
) -> None:
    trap = f"trap '' {ignored}; " if ignored else ""
    with running(server, f"{trap}{command}; exec sleep 60", "--ttl", "1") as process:
        pids.append(int(said(process)))
        lose(server, "tree")
        assert result(process)[0] == 74
    assert not alive(pids[0])


def test_a_lost_lease_ends_only_what_is_of_the_command(server: RedisServer, pids: list[int], tmp_path: Path) -> None:
    """Its shell has started processes before, and has become this program; one of them has an orphan later."""
    late, go_on = tmp_path / "late", tmp_path / "go on"
    more = f"until test -e '{go_on}'; do sleep 0.02; done; {DAEMON} >{late}; exec sleep 60"
    before = f"{SESSION}; {DAEMON}; ({more}) >/dev/null 2>&1 & echo $!; "
    with running(server, f"{DAEMON}; exec sleep 60", "--ttl", "1", before=before) as process:
        pids.extend(int(said(process)) for _ in range(4))
        go_on.touch()
        wait_until(lambda: late.exists() and bool(late.read_text()))
        pids.append(int(late.read_text()))
        wait_until(lambda: stat(pids[-1])[0] == process.pid)  # `run` inherits it once its parent has ended
        lose(server, "tree")
        assert result(process)[0] == 74
        *strangers, own, orphan = pids
        assert not alive(own)
        assert all(map(alive, [*strangers, orphan]))


@pytest.mark.smoke
def test_what_a_command_leaves_behind_is_reaped_while_it_runs(server: RedisServer) -> None:
    leaves = "for n in 1 2 3 4 5; do setsid sh -c 'sleep 0.1 &' >/dev/null; done; "
    with running(server, f"{leaves} echo begun; exec sleep 60") as process:
        assert said(process) == "begun"
        wait_until(lambda: len(children(process.pid)) == 2)  # the command and the guard
        assert "Z" not in children(process.pid).values()


def test_what_a_command_leaves_behind_when_it_ends_goes_on(server: RedisServer, pids: list[int]) -> None:
    with running(server, DAEMON) as process:
        pids.append(int(said(process)))
        assert process.wait(10 * SLACK) == 0
    assert alive(pids[0])


def test_a_tree_that_forks_on_is_ended_before_the_lease_is(server: RedisServer, pids: list[int]) -> None:
    forks = "trap '' TERM; loop() { while :; do setsid sh -c 'sleep 60 >/dev/null 2>&1 & :'; sleep 0.02; done; }; loop"
    with running(server, f"echo $$; {forks}", "--ttl", "2") as process:
        own = int(said(process))
        wait_until(lambda: len(children(process.pid)) > 4)
        lose(server, "tree")
        pids.extend(children(process.pid))
        assert result(process)[0] == 74
        assert not alive(own)
        assert not any(map(alive, pids))


COUNTS = """
import pathlib, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("begun", flush=True)
while not asked:
    time.sleep(0.002)
time.sleep(0.5)
pathlib.Path(sys.argv[1]).write_text(str(len(asked)))
"""
"""Writes down how often it was asked to end, half a second after the first time."""


@pytest.fixture
def counts(tmp_path: Path) -> tuple[str, Path]:
    script, count = tmp_path / "counts.py", tmp_path / "count"
    script.write_text(COUNTS)
    return f"{sys.executable} {script} {count}", count


INNER = f"{sys.executable} -m aiolocks run inner"


@pytest.mark.parametrize("command", [
    f"exec {INNER}0 -- {{}}", f"exec {INNER}0 -- {INNER}1 -- {{}}", 'exec sh -c "(setsid {} &); exec sleep 60"',
    f'exec {INNER} -- sh -c "(setsid {{}} &); exec sleep 60"',
], ids=["a run", "a run inside a run", "away from the group", "away from the group, inside a run"])  # fmt: skip
def test_whatever_descends_from_the_command_is_asked_to_end_once_when_the_lease_is_revoked(
    server: RedisServer, counts: tuple[str, Path], command: str
) -> None:
    with running(server, command.format(counts[0]), "--ttl", "10") as process:
        assert said(process) == "begun"
        assert main(["release", "tree", "--force", "--url", server.tcp_url]) == 0
        assert result(process)[0] == 74
    assert counts[1].read_text() == "1"


def test_a_command_that_is_being_stopped_gets_no_second_signal(server: RedisServer, counts: tuple[str, Path]) -> None:
    with running(server, f"exec {counts[0]}", "--ttl", "10") as process:
        assert said(process) == "begun"
        assert main(["release", "tree", "--force", "--url", server.tcp_url]) == 0
        assert process.stderr is not None
        assert "the command is stopped" in process.stderr.readline()
        process.terminate()
        assert result(process)[0] == 74
    assert counts[1].read_text() == "1"
