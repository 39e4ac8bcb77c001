"""The effect of Ctrl-C on the command line: quiet while its modules are being imported, KeyboardInterrupt afterwards.

It is no part of `cli`, whose import takes the time.
"""

import signal
import threading


def end_at_once() -> None:
    """Let SIGINT end the process without any output; a shell then shows status 130."""
    _replace(signal.default_int_handler, signal.SIG_DFL)


def raise_again() -> None:
    """Let SIGINT raise KeyboardInterrupt, as Python does."""
    _replace(signal.SIG_DFL, signal.default_int_handler)


def _replace(before: object, after: "signal._HANDLER") -> None:
    """Set the handler if the present one is *before*. Under nohup it is another, which ignores the signal and stays."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) == before:
        signal.signal(signal.SIGINT, after)
