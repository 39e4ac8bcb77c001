"""`import aiolocks` is quick, and needs nothing that is optional."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LARGEST = 0.22
"""Most that our import may do, as a share of what redis-py's asyncio client does in its own.

Where redis-py takes 80 ms, this is about 18 ms. Steps are counted, not seconds: their number is the same in each run.
"""

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
print(json.dumps([(steps - theirs) / theirs, sorted(set(sys.modules) - before)]))
"""


def import_once(cache: Path) -> tuple[float, set[str]]:
    """Import in a new process; return our calls and returns of functions as a share of redis-py's, and the modules that
    we alone import: redis-py itself imports OpenTelemetry where that is installed.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    share, modules = json.loads(output.stdout)
    return share, set(modules)


@pytest.mark.rest
def test_import_aiolocks_adds_only_a_little_of_anyio_to_redis_pys_modules(tmp_path: Path) -> None:
    _, modules = import_once(tmp_path)
    assert {name.partition(".")[0] for name in modules} <= {"aiolocks", "anyio", "sniffio"}
    assert len([name for name in modules if name.startswith("anyio")]) <= 12, modules  # of about sixty
    for later in ("cli", "testing", "fastapi", "aiohttp", "otel", "sync", "compat"):
        assert not [name for name in modules if name.startswith(f"aiolocks.{later}")]


@pytest.mark.rest
def test_import_aiolocks_does_at_most_0_22_of_the_work_of_redis_pys(tmp_path: Path) -> None:
    import_once(tmp_path)  # compiles
    share, _ = import_once(tmp_path)
    assert share <= LARGEST


@pytest.mark.rest
@pytest.mark.parametrize(
    ("module", "missing"), [("aiohttp", "aiohttp"), ("fastapi", "fastapi"), ("otel", "opentelemetry")]
)
def test_a_module_without_its_extra_names_it(module: str, missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import aiolocks.{module}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stderr.endswith(f"ImportError: aiolocks.{module} needs the extra '{module}' of aiolocks\n")
