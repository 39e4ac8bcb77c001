"""`import aiolocks` is quick, and needs nothing that is optional."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LONGEST = 0.020
"""Seconds that the import may take beyond that of redis-py's asyncio client."""

THEIRS = 0.080
"""Seconds that redis-py's takes where that is so; longer, and the machine is slower by as much, or busy."""

PROGRAM = """
import json, sys, time
begun = time.process_time()
import redis.asyncio
theirs = time.process_time()
before = set(sys.modules)
import aiolocks
ours = time.process_time()
print(json.dumps([theirs - begun, ours - theirs, sorted(set(sys.modules) - before)]))
"""


def import_once(cache: Path) -> tuple[float, float, set[str]]:
    """Import in a new process; return redis-py's seconds, ours, and the modules that we alone import: redis-py itself
    imports OpenTelemetry where that is installed.

    Seconds are the processor's: another process takes none of those, but it slows the processor down for us.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    command = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    theirs, ours, modules = json.loads(output.stdout)
    return theirs, ours, set(modules)


@pytest.mark.rest
def test_import_aiolocks_adds_only_a_little_of_anyio_to_redis_pys_modules(tmp_path: Path) -> None:
    _, _, modules = import_once(tmp_path)
    assert {name.partition(".")[0] for name in modules} <= {"aiolocks", "anyio", "sniffio"}
    assert len([name for name in modules if name.startswith("anyio")]) <= 12, modules  # of about sixty
    for later in ("cli", "testing", "fastapi", "aiohttp", "otel", "sync", "compat"):
        assert not [name for name in modules if name.startswith(f"aiolocks.{later}")]


@pytest.mark.slow
def test_import_aiolocks_takes_at_most_twenty_milliseconds_beyond_redis_py(tmp_path: Path) -> None:
    import_once(tmp_path)  # compiles
    runs = [import_once(tmp_path) for _ in range(11)]
    # The best, as whatever runs beside only slows it down; each run is its own measure of the machine.
    assert min(ours / max(1.0, theirs / THEIRS) for theirs, ours, _ in runs) <= LONGEST


@pytest.mark.rest
@pytest.mark.parametrize(
    ("module", "missing"), [("aiohttp", "aiohttp"), ("fastapi", "fastapi"), ("otel", "opentelemetry")]
)
def test_a_module_without_its_extra_names_it(module: str, missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import aiolocks.{module}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.stderr.endswith(f"ImportError: aiolocks.{module} needs the extra '{module}' of aiolocks\n")
