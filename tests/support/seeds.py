"""The seed that all random tests of a run draw from: `AIOLOCKS_SEED`, or a fresh one for each run, which is printed."""

import os
import random

import pytest

_VARIABLE = "AIOLOCKS_SEED"


def seed_of_run() -> int:
    """Return the run's seed; it is the same in all workers."""
    return int(os.environ[_VARIABLE])


def pytest_configure() -> None:
    os.environ.setdefault(_VARIABLE, str(random.SystemRandom().randrange(2**31)))  # workers inherit it


def pytest_report_header() -> str:
    return f"{_VARIABLE}={seed_of_run()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print it beside the failures as well: with -q there is no header."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"random tests drew from {_VARIABLE}={seed_of_run()}")
