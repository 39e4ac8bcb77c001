"""Shows where time goes: looks a thousand times a second at what the process is doing.

Unlike a profiler that counts calls, it slows nothing down between two looks. The time of C code counts for the Python
function that called it. Waiting for the server shows as `select`.
"""

import signal
from collections import Counter
from types import FrameType
from typing import Self, final

_INTERVAL = 0.001


@final
class Sampler:
    """Look while inside of `with`. The main thread's time only, and one at a time."""

    def __init__(self) -> None:
        self.samples = 0
        self.own: Counter[str] = Counter()
        """Looks that found this function running."""
        self.whole: Counter[str] = Counter()
        """Looks that found it running or waiting for what it called."""

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, _INTERVAL, _INTERVAL)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _look(self, _: int, frame: FrameType | None) -> None:
        names = []
        while frame is not None:
            names.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}")
            frame = frame.f_back
        self.samples += 1
        self.own[names[0]] += 1
        self.whole.update(set(names))
