"""The processes that the bench starts: their environment, and their end."""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self, final

BENCH = Path(__file__).parents[1]

REPOSITORY = BENCH.parent

PACKAGE_VARIABLE = "AIOLOCKS_BENCH_PACKAGE"
"""Names the folder that aiolocks must have been imported from, where two versions are compared."""


def environment() -> dict[str, str]:
    """Return this process's environment, with the bench and the repository on Python's path.

    They come first, unless they are there already.
    """
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths[:0] = [path for path in map(str, (BENCH, REPOSITORY)) if path not in paths]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def check_package(imported_from: str) -> None:
    """Raise RuntimeError if aiolocks is not the version that this process is to measure.

    A figure of the wrong version looks like any other: no other check would find it.

    Args:
        imported_from: The package's `__file__`.
    """
    wanted = os.environ.get(PACKAGE_VARIABLE)
    found = Path(imported_from).resolve().parent
    if wanted and found != Path(wanted).resolve():
        raise RuntimeError(f"aiolocks was imported from {found}, not from {wanted}")


@final
class Slices:
    """Lets groups of processes run in turns, one after the other, so that noise of the machine falls on all alike.

    A shared machine can be twice as fast in one second as in the next. With slices this short, each group gets as many
    fast ones as the others.
    """

    def __init__(self, groups: int = 2, seconds: float = 0.02) -> None:
        """*groups* is the number of groups in all: while a group has not begun, or has ended, its slices stay empty.

        A rate is counted by the clock, so a group that ran alone for a while would look up to *groups* times as fast.
        """
        self._seconds = seconds
        self._seats: list[int | None] = [None] * groups
        self._seat = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._turn, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @contextmanager
    def sharing(self, leader: int) -> Iterator[None]:
        """Have the group of *leader* take its turns until the end of the block."""
        with self._lock:
            seat = self._seats.index(None)
            self._seats[seat] = leader
        try:
            yield
        finally:
            with self._lock:
                self._seats[seat] = None
                _signal_group(leader, signal.SIGCONT)

    def _turn(self) -> None:
        while not self._over.wait(self._seconds):
            with self._lock:
                self._seat = (self._seat + 1) % len(self._seats)
                for seat, leader in enumerate(self._seats):
                    if leader is not None and seat != self._seat:
                        _signal_group(leader, signal.SIGSTOP)
                running = self._seats[self._seat]
                if running is not None:
                    _signal_group(running, signal.SIGCONT)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, number)


def end_group(process: "subprocess.Popen[str]") -> None:
    """Kill a process that leads a session of its own, and all processes that it started, even stopped ones."""
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()
