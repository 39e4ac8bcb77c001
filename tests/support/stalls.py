"""Tests that failed while the machine stood still: run again once it goes on, and named in the summary.

Time bounds hold for a machine that runs. One that others use too may stand still for a second at any moment, or give
most of its time to its other guests; no slack is wide enough for that. So a process of its own measures it, and only
what failed in such a moment gets another try, and a third only if it stood still in the second too. Whatever else fails
has failed.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import final

import pytest
from _pytest.runner import runtestprotocol

from tests.support.children import dies_with_us

LATE = 0.25
"""Seconds by which a process that only sleeps was late: the machine stood still."""

STOLEN = 0.2
"""The share of the processors' time that other guests of the machine got."""

QUIET, PATIENCE = 1.0, 10.0
"""Seconds without either before the next try, and the most to wait for them."""

LONGEST = 30.0
"""Seconds: after that nothing is tried again, as the limit of a test is one for all tries."""

_STEP = 0.05
_VARIABLE = "AIOLOCKS_STALLS"
_PROPERTY = "the machine stood still"

_WATCH = f"""
import sys, time
with open(sys.argv[1], "a", buffering=1) as file:
    while True:
        begun = time.monotonic()
        time.sleep({_STEP})
        late = time.monotonic() - begun - {_STEP}
        if late >= {LATE}:
            file.write(f"{{time.monotonic()}} {{late}}\\n")
"""


@final
class Stalls:
    """What the watching process has seen, and what the system tells of other guests."""

    def __init__(self, path: str) -> None:
        self._path = path

    def during(self, begun: float, ticks: tuple[int, int]) -> str:
        """Return what happened since *begun*, when `ticks` were these; empty: nothing."""
        late = [late for at, late in self._seen() if at >= begun]
        if late:
            return f"for {max(late):.1f} s"
        all_ticks, stolen = (now - then for now, then in zip(_ticks(), ticks, strict=True))
        return (
            f"{stolen / all_ticks:.0%} of its time went to others" if all_ticks and stolen / all_ticks >= STOLEN else ""
        )

    def wait_until_over(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            begun, ticks = time.monotonic(), _ticks()
            time.sleep(QUIET)
            if not self.during(begun, ticks):
                return

    def _seen(self) -> Iterator[tuple[float, float]]:
        with contextlib.suppress(OSError):
            for line in Path(self._path).read_text(encoding="ascii").splitlines():
                at, late = line.split()
                yield float(at), float(late)


def _ticks() -> tuple[int, int]:
    """Return how much time the processors have had, and how much of it the machine's other guests got."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = list(map(int, file.readline().split()[1:9]))
    except (OSError, ValueError):
        return 0, 0
    return sum(ticks), ticks[7]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if _VARIABLE not in os.environ:  # not in a worker, which has inherited it
        file = tempfile.NamedTemporaryFile(prefix="aiolocks-stalls-", delete=False)  # noqa: SIM115  # it outlives this
        file.close()
        os.environ[_VARIABLE] = file.name
        watching = subprocess.Popen([sys.executable, "-S", "-c", _WATCH, file.name], preexec_fn=dies_with_us())
        config.add_cleanup(lambda: _end(watching, file.name))


def _end(watching: "subprocess.Popen[bytes]", path: str) -> None:
    watching.kill()
    watching.wait()
    os.environ.pop(_VARIABLE, None)
    Path(path).unlink(missing_ok=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    first = begun = time.monotonic()
    ticks = _ticks()
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    while any(report.failed for report in reports) and time.monotonic() - first < LONGEST:
        stalls = Stalls(os.environ[_VARIABLE])
        stood_still = stalls.during(begun, ticks)
        if not stood_still:
            break
        stalls.wait_until_over()
        item.user_properties.append((_PROPERTY, stood_still))
        begun, ticks = time.monotonic(), _ticks()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = dict[str, object]()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                told.update((report.nodeid, why) for name, why in report.user_properties if name == _PROPERTY)
    if told:
        terminalreporter.section("tried again, as the machine stood still")
        for name, why in sorted(told.items()):
            terminalreporter.write_line(f"{name}: {why}")
