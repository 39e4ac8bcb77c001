"""A command in a process group of its own, which dies with this program and shares its terminal as shells expect.

In the foreground the command gets the terminal, so that Ctrl-C and Ctrl-Z reach it: at once if it reads and writes the
terminal, otherwise when it asks. If the terminal stops the command, this program stops too, because its shell waits for
that; the lease is not renewed. When both are continued, the command continues if the lease is still held. Otherwise it
is killed: it was stopped all the time, so it did not work beside another holder.

After Ctrl-C, a shell stops its script only if the shell got SIGINT too and the program it waits for died of SIGINT.
So if SIGINT ended the command, this program releases the lease and then dies of SIGINT too.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import final

from ._tree import Process, Tree, send_to

_PR_SET_PDEATHSIG = 1
_POLL_INTERVAL = 0.005

_JOB = 0
"""Target of `os.kill` for this program's process group, which can include the shell of a script or a pipeline."""

_BY_TERMINAL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_FOR_COMMAND = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals for the command alone: they kill processes that do not handle them, such as its children."""

_GUARD = 'read -r group && { read -r _ || kill -KILL "-$group"; }'
"""The guard: reads the group of the command, which writes it before exec, and then a line from this program. If the
input ends instead, this program was killed."""


@final
class Child:
    """The command. Make and close it in the main thread, which gets the signals.

    Attributes:
        ended: Its exit status, or minus the number of the signal that ended it.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], may_go_on: Callable[[], bool]) -> None:
        """*may_go_on* returns whether the command may continue after it was stopped together with this program."""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._may_go_on = may_go_on
        self._asked_to_end = False
        self._terminal = _Terminal()
        self._in_terminal = self._terminal.ours and os.isatty(0) and os.isatty(1)
        self._loop.add_signal_handler(signal.SIGCHLD, self._child_ended)
        self._tree = Tree(environment)
        self._guard = _guard()
        try:
            self._process = _start(words, environment, self._terminal if self._in_terminal else None, self._guard)
        except BaseException:
            self._loop.remove_signal_handler(signal.SIGCHLD)
            if self._in_terminal:
                self._terminal.give(os.getpgrp())
            self._terminal.close()
            self._tree.close()
            self._end_guard()
            raise
        self._group = self._process.pid
        self._mirrors = self._terminal.there and signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN
        if self._mirrors:
            self._loop.add_signal_handler(signal.SIGTSTP, self.send, signal.SIGTSTP)
        self._check_command()

    def send(self, number: int) -> None:
        """Send a signal to the whole group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # PermissionError: on macOS a group of zombies
            os.killpg(self._group, number)

    def pass_on(self, number: int) -> None:
        """Pass a signal to this program on to the command."""
        if number == signal.SIGTERM and self._asked_to_end:
            return  # from the outer `aiolocks run`, which lost its lease too
        if number not in _FOR_COMMAND:
            self.send(number)
        elif not self.ended.done():
            os.kill(self._group, number)
        if number in (signal.SIGTERM, signal.SIGHUP):  # a stopped command reacts only then
            self.send(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """Send SIGTERM to the group and to all other descendants of the command."""
        self._asked_to_end = True
        beside = self._tree.unasked(self._beside())  # before the group ends, when its children get another parent
        for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process reacts only after SIGCONT
            self.send(number)
            send_to(beside, number)

    def kill(self) -> None:
        """Kill the group and all other descendants of the command."""
        self.send(signal.SIGKILL)
        send_to(self._beside(), signal.SIGKILL)

    async def gone(self, seconds: float) -> None:
        """Wait up to *seconds* until all descendants of the command have ended."""
        until = self._loop.time() + seconds
        if seconds > 0:
            await asyncio.wait({self.ended}, timeout=seconds)
        while self.ended.done() and self._loop.time() < until and self._remain():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)

    async def killed(self, seconds: float) -> None:
        """Kill all descendants of the command, new ones too, until none is left or *seconds* have passed."""
        until = self._loop.time() + seconds
        self.kill()
        while self._loop.time() < until and (not self.ended.done() or self._remain()):
            await asyncio.sleep(_POLL_INTERVAL)
            self.kill()

    def interrupted(self) -> int | None:
        """Return the target of `os.kill` for the SIGINT that ended the command, or None if it is not passed on."""
        if self._terminal.foreground() == self._group:
            return _JOB  # Ctrl-C reached only the group of the command, so the script has not got it
        return os.getpid() if self._terminal.ours else None

    def close(self) -> None:
        """Kill the command if it runs, take back the terminal, and end the guard."""
        if not self.ended.done():
            self.kill()
            self._process.wait()
        self._tree.close()
        self._loop.remove_signal_handler(signal.SIGCHLD)
        if self._mirrors:
            self._loop.remove_signal_handler(signal.SIGTSTP)
        self._terminal.take_back(self._group)
        self._terminal.close()
        self._end_guard()

    def _end_guard(self) -> None:
        if self._guard is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.communicate(b"\n\n", timeout=1)

    def _beside(self) -> list[Process]:
        command = 0 if self.ended.done() else self._group
        return self._tree.beside(self._group, command, 0 if self._guard is None else self._guard.pid)

    def _remain(self) -> bool:
        """Whether other processes than the command itself are left."""
        return self._populated() or bool(self._beside())

    def _populated(self) -> bool:
        try:
            os.killpg(self._group, 0)
        except OSError:
            return False
        return True

    def _check_command(self) -> None:
        """Handle the stop or end of the command."""
        while not self.ended.done():
            pid, status = os.waitpid(self._group, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            if os.WIFSTOPPED(status):
                self._stopped(os.WSTOPSIG(status))
            else:
                self._process.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait for it
                self.ended.set_result(self._process.returncode)

    def _child_ended(self) -> None:
        """Handle the stop or end of a child: the command, the guard, or an orphan of the command."""
        self._check_command()
        guard = self._guard.pid if self._guard is not None and self._guard.poll() is None else 0
        self._tree.reap({self._group, guard})

    def _stopped(self, number: int) -> None:
        if not self._mirrors or number not in _BY_TERMINAL:
            return
        if number != signal.SIGTSTP and self._terminal.ours:
            self._in_terminal = True  # it asked for the terminal, so give it
        else:
            self.send(signal.SIGSTOP)  # also stops the members of its group that catch SIGTSTP
            self._loop.remove_signal_handler(signal.SIGTSTP)
            # The whole job: the shell may wait for another process of it. Without a shell the system ignores this.
            os.killpg(os.getpgrp(), signal.SIGTSTP)
            self._loop.add_signal_handler(signal.SIGTSTP, self.send, signal.SIGTSTP)
            if not self._may_go_on():
                self.kill()
                return
        if self._in_terminal and self._terminal.ours:
            self._terminal.give(self._group)
        self.send(signal.SIGCONT)


def interrupted() -> int | None:
    """Return the pid of this process if Ctrl-C may have sent it SIGINT, otherwise None."""
    terminal = _Terminal()
    try:
        return os.getpid() if terminal.ours else None
    finally:
        terminal.close()


@final
class _Terminal:
    """The controlling terminal, if there is one."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    @property
    def there(self) -> bool:
        return self._fd >= 0

    @property
    def ours(self) -> bool:
        """Whether this program is in the foreground."""
        return self.foreground() == os.getpgrp()

    def give(self, group: int) -> None:
        """Put *group* in the foreground. The command itself can call this before exec."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            os.tcsetpgrp(self._fd, group)
        except OSError:  # the terminal has hung up
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def take_back(self, group: int) -> None:
        """Put this program in the foreground, if *group* is there."""
        if self.foreground() == group:
            self.give(os.getpgrp())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def foreground(self) -> int:
        """Return the group in the foreground, or -1."""
        try:
            return os.tcgetpgrp(self._fd) if self._fd >= 0 else -1
        except OSError:
            return -1


def _start(
    words: Sequence[str],
    environment: Mapping[str, str],
    terminal: _Terminal | None,
    guard: "subprocess.Popen[bytes] | None",
) -> "subprocess.Popen[bytes]":
    parent = os.getpid()
    to_guard = guard.stdin.fileno() if guard is not None and guard.stdin is not None else -1
    # Loaded before the fork: after it, little is safe.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            # Linux kills the command itself even without a guard.
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        if to_guard >= 0:
            os.write(to_guard, b"%d\n" % os.getpid())
        if terminal is not None:
            terminal.give(os.getpid())

    with _no_warning_of_threads():
        return subprocess.Popen(words, env=environment, process_group=0, preexec_fn=prepare)


@contextlib.contextmanager
def _no_warning_of_threads() -> Generator[None]:
    """A thread may be resolving host names. The code after the fork needs none of its locks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _guard() -> "subprocess.Popen[bytes] | None":
    """Start the guard, which kills the command's group if this program is killed, in a session without the terminal."""
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _GUARD],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except OSError:
        return None
