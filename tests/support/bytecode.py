"""Compiling the tests once, and not in each worker: pytest rewrites their assertions, which takes its time."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import parts
from tests.support.children import dies_with_us

MANY = 40
"""Files, from which on it is worth the two processes."""

LONGEST = 60.0
"""Seconds; what they have not compiled by then, the workers do."""


def keep() -> None:
    """Write bytecode also where Python is told not to: else each of a thousand programs compiles all."""
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def compile_once(config: pytest.Config) -> None:
    """Before workers begin, which would all compile the same files at the same time: two processes, a half each."""
    if not config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
        return
    named = [config.rootpath / argument.partition("::")[0] for argument in config.args]
    files = [file for path in named for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
    missing = sorted(str(file) for file in files if not _kept(file).exists() and not parts.elsewhere(file, config))
    if len(missing) < MANY:
        return
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:xdist", "-p", "no:cacheprovider"]
    halves = [
        subprocess.Popen(
            [*command, *missing[at::2]], cwd=config.rootpath, stdout=subprocess.DEVNULL, preexec_fn=dies_with_us()
        )
        for at in (0, 1)
    ]
    for half in halves:
        with contextlib.suppress(subprocess.TimeoutExpired):
            half.wait(LONGEST)
        half.kill()
        half.wait()


def _kept(file: Path) -> Path:
    name = f"{file.stem}.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    return file.parent / "__pycache__" / name
