"""`import aiolocks` is quick, and needs nothing that is optional."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.workers import REPOSITORY

LARGEST = 0.22
"""Most steps that our import may take, as a share of those of redis-py's asyncio client; each run has as many."""

PROGRAM = """
import json, sys
steps = 0
def count(frame, event, argument):
    global steps
    steps += 1
sys.setprofile(count)
import redis.asyncio
theirs, before = steps, set(sys.modules)
import aiolocks
sys.setprofile(None)
ours = sorted(set(sys.modules) - before)
import aiolocks.cli
print(json.dumps([(steps - theirs) / theirs, ours, list(sys.modules)]))
"""


def import_once(cache: Path) -> tuple[float, list[str], list[str]]:
    """Import in a new process; return our calls and returns of functions as a share of redis-py's, the modules that we
    alone import (redis-py itself imports OpenTelemetry where that is installed), and all modules of the command line.
    """
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=variables, capture_output=True, text=True, check=True, timeout=30
    )
    share, ours, all_of_them = json.loads(done.stdout)
    return share, ours, all_of_them


@pytest.mark.rest
def test_import_aiolocks_does_little_of_its_own_and_needs_nothing_optional(tmp_path: Path) -> None:
    import_once(tmp_path)  # compiles
    share, ours, with_command_line = import_once(tmp_path)
    assert share <= LARGEST
    assert {name.partition(".")[0] for name in ours} <= {"aiolocks", "anyio", "sniffio"}
    assert len([name for name in ours if name.startswith("anyio")]) <= 12, ours  # of about sixty
    for later in ("cli", "testing", "fastapi", "aiohttp", "otel", "sync", "compat"):
        assert not [name for name in ours if name.startswith(f"aiolocks.{later}")]
    assert not {"rich", "fakeredis", "lupa"} & set(with_command_line)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("module", "missing"), [("aiohttp", "aiohttp"), ("fastapi", "fastapi"), ("otel", "opentelemetry")]
)
def test_a_module_without_its_extra_names_it(module: str, missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import aiolocks.{module}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stderr.endswith(f"ImportError: aiolocks.{module} needs the extra '{module}' of aiolocks\n")
