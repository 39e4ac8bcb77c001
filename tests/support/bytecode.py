"""Compiling the tests once, and not in each worker: pytest rewrites their assertions, which takes its time."""

import contextlib
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support import parts
from tests.support.children import dies_with_us

_MANY = 40
"""Files, from which on it is worth the two processes."""

_LONGEST = 60.0
"""Seconds; what they have not compiled by then, the workers do."""

_CACHED = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"


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
    files = [file for file in files if not (file.parent / "__pycache__" / f"{file.stem}.{_CACHED}").exists()]
    missing = sorted(str(file) for file in files if not parts.pytest_ignore_collect(file, config))
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:xdist", "-p", "no:cacheprovider"]
    options: Any = {"cwd": config.rootpath, "stdout": subprocess.DEVNULL, "preexec_fn": dies_with_us()}
    halves = [missing[at::2] for at in (0, 1)] if len(missing) >= _MANY else []
    for half in [subprocess.Popen([*command, *half], **options) for half in halves]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            half.wait(_LONGEST)
        half.kill()
        half.wait()
