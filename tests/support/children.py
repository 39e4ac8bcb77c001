"""Processes that tests start end with the process that started them, also when that is killed.

And they hear the signals that it may have been told to ignore: as by nohup, or a script's `&`.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_PR_SET_PDEATHSIG = 1

_IGNORED_BY_OTHERS = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP
)  # fmt: skip
"""What a process that ignores them makes its children ignore, and a shell may then neither trap nor reset."""


def hear_signals() -> None:
    """Ignore no signal: for a child, before it runs its program."""
    for number in _IGNORED_BY_OTHERS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def dies_with_us() -> Callable[[], object] | None:
    """Return what a child has to call before it runs its program (`preexec_fn`), where the system can do that.

    Linux asks after the thread that started it: one of another thread outlives that.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork, after which little is safe
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def family(*command: str | os.PathLike[str], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """Run a command that ignores no signal; its output is a text pipe, and *options* are those of Popen.

    On leaving, it and all that it forked are killed, stopped ones too.
    """
    die_with_us = dies_with_us()

    def prepare() -> None:
        hear_signals()
        if die_with_us is not None:
            die_with_us()

    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=prepare, **options
    )
    with process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
