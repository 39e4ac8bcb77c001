"""Two versions of the package in one process: this checkout's, and the released one under another name."""

import atexit
import shutil
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import aiolocks
from tests.fleets.neighbours.peer import RELEASED, neighbour

VERSIONED = 2**41
"""From this seed on, some processes run the released version."""


def packages(seed: int) -> list[Any]:
    """Return what the processes of a run import; skip the test where the other version's commit is missing."""
    return [aiolocks, _released()] if seed >= VERSIONED else [aiolocks]


@cache
def _released() -> Any:
    """Return the package as it was at RELEASED: its imports are relative, so it has any name."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    neighbour(folder, RELEASED).joinpath("aiolocks").rename(folder / "aiolocks_released")
    sys.path.append(str(folder))
    return import_module("aiolocks_released")
