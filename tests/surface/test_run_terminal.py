"""`aiolocks run` at a terminal: a real shell with job control, to which a test types."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_sync

from tests.support.children import hear_signals
from tests.support.lateness import SLACK
from tests.support.servers import RedisServer
from tests.support.workers import environment

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120), pytest.mark.rest]

WITHIN = 10 * SLACK
CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"


class Terminal:
    """A program at a terminal of its own."""

    def __init__(
        self, command: list[str], environment: dict[str, str], prepare: Callable[[], object] = hear_signals, *,
        columns: int = 80,
    ) -> None:  # fmt: skip
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            prepare()
            os.execve(command[0], command, environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._seen = ""

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def sees(self, pattern: str) -> str:
        """Wait for it in what came since the last time; return what it matched."""
        give_up_at = time.monotonic() + WITHIN
        while not (found := re.search(pattern, self._seen)):
            ready, _, _ = select.select([self.fd], [], [], max(give_up_at - time.monotonic(), 0))
            assert ready, f"{pattern!r} did not come, but: {self._seen[-2000:]!r}"
            self._seen += os.read(self.fd, 65536).decode(errors="ignore")
        self._seen = self._seen[found.end() :]
        return found[0]

    def ends(self) -> tuple[int, str]:
        """Return its exit status, and what came until its end."""
        give_up_at = time.monotonic() + WITHIN
        while time.monotonic() < give_up_at:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self._seen += os.read(self.fd, 65536).decode(errors="ignore")
                except OSError:
                    break
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), self._seen


class Shell(Terminal):
    """An interactive shell, where `run` is the command under test."""

    def __init__(self, url: str) -> None:
        env = environment({"TERM": "dumb", "PS1": "", "AIOLOCKS_URL": url})
        super().__init__(["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"], env)
        # It says its own status, as a line that is typed ahead gets lost when Ctrl-C ends what runs.
        run = f'{sys.executable} -W error -m aiolocks run "$@"'
        self.type(f"stty -echo; run() {{ {run}; echo \"status $?\" >&2; }}; echo re''ady")
        self.sees("ready")

    def type(self, line: str) -> None:
        self.press(f"{line}\n")

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        os.waitpid(self.pid, 0)


@pytest.fixture
def shell(server: RedisServer) -> Iterator[Shell]:
    if not Path("/bin/bash").exists():
        pytest.skip("needs a shell with job control")
    shell = Shell(server.tcp_url)
    try:
        yield shell
    finally:
        shell.close()


@pytest.mark.smoke
def test_the_command_has_the_terminal_and_the_shell_has_it_back(shell: Shell) -> None:
    shell.type("run tty -- sh -c 'echo begun; read word; echo \"got $word\"'")
    shell.sees("begun")
    shell.type("hello")
    shell.sees("got hello")
    shell.sees("status 0")
    shell.type('read word; echo "shell got $word"')
    shell.type("again")
    shell.sees("shell got again")


def test_ctrl_c_ends_the_command_as_it_would_alone(shell: Shell) -> None:
    for command, status in (("cat", 130), ("sh -c 'trap \"echo trapped; exit 9\" INT; while :; do cat; done'", 9)):
        shell.type(f"run tty -- {command}")
        shell.type("begun")
        shell.sees("begun")
        shell.press(CTRL_C)
        shell.sees(f"status {status}")


def test_ctrl_c_while_it_waits_ends_it(shell: Shell, server: RedisServer) -> None:
    shell.type("run tty -- sh -c 'echo begun; sleep 60' &")
    shell.sees("begun")
    shell.type("run tty -- echo never")
    with redis_sync.Redis.from_url(server.url) as redis:
        while not redis.exists("aiolocks:lock:{tty}:queue"):
            time.sleep(0.05)
    shell.press(CTRL_C)
    shell.sees("status 130")


def test_ctrl_z_stops_the_job_and_fg_continues_it(shell: Shell) -> None:
    shell.type("run tty -- sh -c 'echo begun; while read word; do echo \"got $word\"; done'")
    shell.sees("begun")
    for word in ("one", "two"):
        shell.press(CTRL_Z)
        shell.sees("Stopped")
        shell.type(f"fg\n{word}")
        shell.sees(f"got {word}")
    shell.press(CTRL_D)
    shell.type("echo shell''s")
    shell.sees("shells")


def test_a_job_that_was_stopped_for_longer_than_its_lease_is_killed_and_not_continued(shell: Shell) -> None:
    shell.type("run tty --ttl 0.5 -- sh -c 'echo begun; while read word; do echo \"got $word\"; done'")
    shell.sees("begun")
    shell.press(CTRL_Z)
    shell.sees("Stopped")
    shell.type("run tty --wait 10 -- echo another")
    shell.sees("another")
    shell.sees("status 0")
    shell.type("fg; echo fg said $?\nhello")
    assert "got" not in shell.sees(r"(?s).*fg said 74")


def test_a_job_in_the_background_runs_and_gets_the_terminal_when_it_is_brought_to_the_front(shell: Shell) -> None:
    shell.type("run tty -- sh -c 'echo begun; read word; echo \"got $word\"' &")
    shell.sees("begun")
    shell.sees("Stopped|\n")
    time.sleep(0.2)
    shell.type("fg")
    time.sleep(0.2)
    shell.type("hello")
    shell.sees("got hello")
    shell.sees("status 0")


def test_in_a_pipeline_the_command_gets_the_terminal_when_it_asks_for_it(shell: Shell) -> None:
    shell.type("run tty -- sh -c 'echo begun; read word; echo \"got $word\"' | cat")
    shell.sees("begun")
    shell.type("hello")
    shell.sees("got hello")
    shell.sees("status 0")
    shell.type("run tty -- sh -c 'echo begun; cat' | cat")
    shell.type("hello")
    shell.sees("hello")
    shell.press(CTRL_C)
    shell.sees("status 130")
    shell.type("run tty -- sh -c 'echo begun; sleep 1; echo done' | cat")
    shell.sees("begun")
    shell.press(CTRL_Z)
    shell.sees("Stopped")
    shell.type("fg")
    shell.sees("done")
