"""The processes that the bench starts: their environment, and their end."""

import os
import signal
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """Return this process's environment, with the repository on Python's path."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def end_group(process: "subprocess.Popen[str]") -> None:
    """Kill a process that leads a session of its own, and all that it started, stopped ones too."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
