"""The processes that the bench starts: their environment, and their end."""

import os
import signal
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

PACKAGE_VARIABLE = "AIOLOCKS_BENCH_PACKAGE"
"""Names the folder that aiolocks must have been imported from, where two versions are compared."""


def environment() -> dict[str, str]:
    """Return this process's environment, with the repository on Python's path: last, if it is there already."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(REPOSITORY) not in paths:
        paths.insert(0, str(REPOSITORY))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def check_package(imported_from: str) -> None:
    """Raise RuntimeError if aiolocks is not the version that this process is to measure.

    A figure of the wrong version looks like any other: nothing else would tell.

    Args:
        imported_from: The package's `__file__`.
    """
    wanted = os.environ.get(PACKAGE_VARIABLE)
    found = Path(imported_from).resolve().parent
    if wanted and found != Path(wanted).resolve():
        raise RuntimeError(f"aiolocks was imported from {found}, not from {wanted}")


def end_group(process: "subprocess.Popen[str]") -> None:
    """Kill a process that leads a session of its own, and all that it started, stopped ones too."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
