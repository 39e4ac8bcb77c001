"""The world: one virtual time, one source of chance, one list of what happens next.

Everything that a simulated program could learn from the real world (time, randomness) is replaced while a seed runs,
so the same seed gives the same run, byte for byte.
"""

import gc
import heapq
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

Action = Callable[..., object]

_runs = itertools.count()

EPOCH = 1_790_000_000.0
"""Seconds of Unix time at which every run begins."""


@final
class World:
    """Virtual time, chance, and the events to come.

    Attributes:
        now: True seconds since the run began. No simulated clock shows exactly this.
        rng: Decides what befalls; the programs' own draws come from `random` and `os.urandom`, seeded too.
        wall: Unix time as the process that runs just now sees it.
    """

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self.run_number = next(_runs)
        self.now = 0.0
        self.rng = random.Random(seed)
        self.met: Counter[str] = Counter()
        self.violations: list[str] = []
        self.tracing = tracing
        self.trace: list[str] = []
        self.wall: Callable[[], float] = lambda: EPOCH + self.now
        self._agenda: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._sequence = itertools.count()
        self._tokens = random.Random(f"tokens of {seed}")

    def at(self, when: float, action: Action, *args: Any) -> None:
        """Do *action* at true time *when*; things due at one time happen in the order in which they were planned."""
        heapq.heappush(self._agenda, (max(when, self.now), next(self._sequence), action, args))

    def after(self, delay: float, action: Action, *args: Any) -> None:
        self.at(self.now + delay, action, *args)

    def go_on(self, until: float, stop: Callable[[], bool] | None = None) -> None:
        """Let things happen until true time *until*, or until *stop* says so after one of them."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= until:
            self.now, _, action, args = heapq.heappop(agenda)
            action(*args)
            if self.violations or (stop is not None and stop()):
                return
        self.now = max(self.now, until)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def note(self, who: str, what: str) -> None:
        """Add a line to the trace. Callers that would have to format much look at `tracing` first."""
        if self.tracing:
            self.trace.append(f"{self.now:12.6f} {who:<8} {what}")

    def meet(self, what: str, who: str = "fault") -> None:
        self.met[what] += 1
        if self.tracing:
            self.note(who, what)

    def violate(self, what: str) -> None:
        self.violations.append(f"at {self.now:.6f}: {what}")
        self.note("VIOLATED", what)

    def urandom(self, size: int) -> bytes:
        return self._tokens.randbytes(size)

    @contextmanager
    def governing(self) -> Iterator[None]:
        """Replace time and chance for everything in this process, meanwhile; rubbish is collected afterwards."""
        earlier = time.time, os.urandom, random.getstate()
        collecting = gc.isenabled()
        gc.disable()  # when it collects depends on what ran before
        time.time, os.urandom = lambda: self.wall(), self.urandom
        random.seed(self.seed)
        try:
            yield
        finally:
            time.time, os.urandom = earlier[:2]
            random.setstate(earlier[2])
            if collecting:
                gc.enable()
