"""All descendants of the command, in any session. Only Linux can list them; elsewhere the list is empty.

The one rule: no signal reaches a process that does not descend from the command.
"""

import contextlib
import ctypes
import errno
import os
import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, final

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37

_FIRST = 1
"""Pid of the process that inherits all orphans. In a container it may be this program."""

_ENDED = ("Z", "X")

_MARKS = (b"AIOLOCKS_NAME", b"AIOLOCKS_FENCING_TOKEN")
"""Environment variables that a process inherits from the command. No other command has the same values."""


class Process(NamedTuple):
    """A process in the system's table. A pid can be used again, but not with the same start time."""

    pid: int
    state: str
    parent: int
    group: int
    started: str


@final
class Tree:
    """The descendants. Make it before the command is started, and close it after the command has ended.

    Invariant: until it is closed, each orphan of the command becomes a child of this program.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """*environment* is the command's."""
        self._marks = {b"%b=%b" % (name, environment.get(name.decode(), "").encode()) for name in _MARKS}
        self._open = sys.platform == "linux"
        self._strangers = frozenset[int]()
        if self._open:
            self._was_subreaper = _subreaper()
            _set_subreaper(True)
            # The shell that became this program by `exec` may have had children.
            self._strangers = frozenset(one.pid for one in _processes() if one.parent == os.getpid())
            self._marked_only = bool(self._strangers) or self._was_subreaper or os.getpid() == _FIRST
            """Whether orphans of other programs may become children of this one."""

    def beside(self, group: int, command: int, guard: int) -> list[Process]:
        """Return the live descendants of the command that are not in its *group*.

        Args:
            command: Its pid, or 0 after it was waited for, because the pid may then mean another process.
            guard: A child of this program that is not a descendant of the command, or 0.
        """
        if not self._open:
            return []
        found = {one.pid: one for one in _processes()}
        ours, others = os.getpid(), {guard, *self._strangers}

        def descends(one: Process) -> bool:
            seen = set[int]()  # the table is read while it changes
            while one.pid not in seen:
                seen.add(one.pid)
                if one.pid == command:
                    return True
                if one.parent == ours:
                    return one.pid not in others and (not self._marked_only or self._marked(one.pid))
                if one.parent not in found:
                    return False
                one = found[one.parent]
            return False

        return [one for one in found.values() if one.group != group and one.state not in _ENDED and descends(one)]

    def unasked(self, beside: Sequence[Process]) -> list[Process]:
        """Return the processes of *beside* that no inner `aiolocks run` asks to end.

        An inner run passes SIGTERM on to the group of its command. This command is the first child that the run has
        started whose `_MARKS` differ from the run's own.
        """
        commands = dict[int, Process]()
        for one in sorted(beside, key=lambda one: (int(one.started), one.pid)):
            marks = _marks_of(one.pid) if one.pid == one.group else set[bytes]()
            if len(marks) == len(_MARKS) and marks not in (self._marks, _marks_of(one.parent)):
                commands.setdefault(one.parent, one)
        groups = {command.group for command in commands.values()}
        return [one for one in beside if one.group not in groups]

    def reap(self, spared: Collection[int]) -> None:
        """Reap the orphans that have ended. The children in *spared* are waited for elsewhere."""
        if sys.platform != "linux" or not self._open:
            return
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in spared:
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)

    def close(self) -> None:
        """Stop inheriting orphans."""
        if self._open:
            self._open = False
            _set_subreaper(self._was_subreaper)

    def _marked(self, pid: int) -> bool:
        return self._marks <= _marks_of(pid)


def _marks_of(pid: int) -> set[bytes]:
    """Return the marks in the environment of a process, or none if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:
            return {line for line in environment.read().split(b"\0") if line.partition(b"=")[0] in _MARKS}
    except OSError:
        return set()


def send_to(processes: Iterable[Process], number: int) -> None:
    """Send a signal to *processes*, except to any that has ended or whose pid may mean another process now."""
    for one in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            _send(one, number)


def _send(one: Process, number: int) -> None:
    if sys.platform != "linux":
        return
    try:
        fd = os.pidfd_open(one.pid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return
        fd = -1  # the system is older than Linux 5.3, or forbids it
    try:
        now = _process(one.pid)  # read while the descriptor keeps the pid from being used again
        if now is None or now.started != one.started or now.parent not in (one.parent, os.getpid()):
            return
        if fd >= 0:
            signal.pidfd_send_signal(fd, number)
        else:
            os.kill(one.pid, number)
    finally:
        if fd >= 0:
            os.close(fd)


def _processes() -> Iterator[Process]:
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return
    for pid in pids:
        one = _process(pid)
        if one is not None:
            yield one


def _process(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stat:
            words = stat.read().decode(errors="replace").rpartition(")")[2].split()  # a program's name may have ") "
    except OSError:
        return None
    return Process(pid, words[0], int(words[1]), int(words[2]), words[19]) if len(words) > 19 else None


def _subreaper() -> bool:
    found = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return bool(found.value)


def _set_subreaper(wanted: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(wanted), 0, 0, 0)
