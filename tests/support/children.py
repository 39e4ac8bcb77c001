"""Processes that tests start end with the process that started them, also when that is killed."""

import ctypes
import signal
import sys
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def dies_with_us() -> Callable[[], object] | None:
    """Return what a child has to call before it runs its program (`preexec_fn`), where the system can do that.

    Linux asks after the thread that started it: one of another thread outlives that.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up before the fork, after which little is safe
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
