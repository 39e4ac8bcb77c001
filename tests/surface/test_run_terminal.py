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

from tests.support.children import hear_signals
from tests.support.servers import RedisServer
from tests.support.workers import environment
from tests.surface.test_run import WITHIN, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120), pytest.mark.rest]

CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"


class Terminal:
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

    def play(self, *steps: tuple[str, str]) -> None:
        """Press keys, and wait for the pattern beside them, step by step."""
        for keys, pattern in steps:
            self.press(keys)
            self.sees(pattern)

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
        env = environment({"TERM": "dumb", "PS1": "<$?>", "AIOLOCKS_URL": url})
        super().__init__(["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"], env)
        # It says its own status, as a line that is typed ahead gets lost when Ctrl-C ends what runs.
        run = f'{sys.executable} -W error -m aiolocks run "$@"'
        self.play((f"stty -echo; run() {{ {run}; echo \"status $?\" >&2; }}; echo re''ady\n", "ready"))

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


ECHO = "run tty -- sh -c 'echo begun; read word; echo \"got $word\"'"
ECHO_ON = "run tty {}-- sh -c 'echo begun; while read word; do echo \"got $word\"; done'\n"


@pytest.mark.smoke
def test_the_command_has_the_terminal_and_the_shell_has_it_back(shell: Shell) -> None:
    shell.play(
        (f"{ECHO}\n", "begun"),
        ("hello\n", "got hello(?s:.*)status 0"),
        ('read word; echo "shell got $word"\nagain\n', "shell got again"),
    )


def test_ctrl_c_ends_the_command_as_it_would_alone(shell: Shell) -> None:
    trapping = "sh -c 'trap \"echo trapped; exit 9\" INT; while :; do cat; done'"
    for command, status in (("cat", "<130>"), (trapping, "status 9")):
        shell.play((f"run tty -- {command}\nbegun\n", "begun"), (CTRL_C, status))


SLEEP = "-- sh -c 'echo begun; exec sleep 60'"


@pytest.mark.parametrize(("line", "stops"), [
    (f"$run free {SLEEP}", True), (f"$run free --again {SLEEP}", True), (f"$run free {SLEEP} | cat", True),
    (f"$run free {SLEEP} <&-", True), (f"$run free -- $run inner {SLEEP}", True),
    ("echo begun; $run busy -- echo never", True), ("echo begun; $run busy --again -- echo never", True),
    ("$run free -- sh -c 'trap \"exit 130\" INT; echo begun; while :; do sleep 0.02; done'", False),
])  # fmt: skip
def test_ctrl_c_stops_the_script_around_it_unless_the_command_handles_it(
    server: RedisServer, line: str, stops: bool
) -> None:
    """Bash goes on after a command that has exited by itself, also with 130."""
    for kind in ("lock", "election"):
        server.operator.set(f"aiolocks:{kind}:{{busy}}", "held", px=60_000)
    env = environment({"TERM": "dumb", "AIOLOCKS_URL": server.tcp_url, "run": f"{sys.executable} -m aiolocks run"})
    terminal = Terminal(["/bin/bash", "-c", f"for turn in 1 2; do {line}; done; echo went on"], env)
    for _ in range(1 if stops else 2):
        terminal.sees("begun")
        wait_until(lambda: "never" not in line or [*server.operator.scan_iter("aiolocks:*:{busy}:queue")])
        terminal.press(CTRL_C)
    status, text = terminal.ends()
    assert (status, "went on" in text, "begun" in text) == (-signal.SIGINT if stops else 0, not stops, False)
    assert not [*server.operator.scan_iter("aiolocks:*:{busy}:queue"), *server.operator.scan_iter("aiolocks:*:{free}")]


def test_ctrl_c_while_it_waits_ends_it(shell: Shell, server: RedisServer) -> None:
    shell.play(("run tty -- sh -c 'echo begun; sleep 60' &\n", "begun"))
    shell.press("run tty -- echo never\n")
    wait_until(lambda: server.operator.exists("aiolocks:lock:{tty}:queue"))
    shell.play((CTRL_C, "<130>"))


def test_ctrl_z_stops_the_job_and_fg_continues_it(shell: Shell) -> None:
    shell.play(
        (ECHO_ON.format(""), "begun"), (CTRL_Z, "Stopped"), ("fg\none\n", "got one"), (CTRL_Z, "Stopped"),
        ("fg\ntwo\n", "got two"), (f"{CTRL_D}echo shell''s\n", "shells"),
    )  # fmt: skip


def test_a_job_that_was_stopped_for_longer_than_its_lease_is_killed_and_not_continued(shell: Shell) -> None:
    shell.play(
        (ECHO_ON.format("--ttl 0.5 "), "begun"),
        (CTRL_Z, "Stopped"),
        ("run tty --wait 10 -- echo another\n", "another(?s:.*)status 0"),
    )
    shell.press("fg; echo fg said $?\nhello\n")
    assert "got" not in shell.sees(r"(?s).*fg said 74")


def test_a_job_in_the_background_runs_and_gets_the_terminal_when_it_is_brought_to_the_front(shell: Shell) -> None:
    shell.play((f"{ECHO} &\n", "begun"), ("", "Stopped|\n"))
    time.sleep(0.2)
    shell.press("fg\n")
    time.sleep(0.2)
    shell.play(("hello\n", "got hello(?s:.*)status 0"))


def test_in_a_pipeline_the_command_gets_the_terminal_when_it_asks_for_it(shell: Shell) -> None:
    shell.play(
        (f"{ECHO} | cat\n", "begun"), ("hello\n", "got hello(?s:.*)status 0"),
        ("run tty -- sh -c 'echo begun; cat' | cat\nhello\n", "hello"), (CTRL_C, "<130>"),
        ("run tty -- sh -c 'echo begun; sleep 1; echo done' | cat\n", "begun"), (CTRL_Z, "Stopped"), ("fg\n", "done"),
    )  # fmt: skip
