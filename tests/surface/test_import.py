"""`import aiolocks` is quick, and needs nothing that is optional."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

OPTIONAL = {
    "fakeredis", "lupa", "rich", "uvloop", "pytest", "pytest_asyncio", "fastapi", "starlette", "aiohttp", "psutil",
    "trio", "hypothesis", "opentelemetry", "prometheus_client",
}  # fmt: skip

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
added = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps([theirs - begun, ours - theirs, sorted(added)]))
"""


def import_once(cache: Path) -> tuple[float, float, set[str]]:
    """Import in a new process; return redis-py's seconds, ours, and the packages that we alone import: redis-py itself
    imports OpenTelemetry where that is installed.

    Seconds are the processor's: another process takes none of those, but it slows the processor down for us.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    theirs, ours, packages = json.loads(output.stdout)
    return theirs, ours, set(packages)


def test_it_imports_nothing_optional(tmp_path: Path) -> None:
    _, _, packages = import_once(tmp_path)
    assert not packages & OPTIONAL


@pytest.mark.slow
def test_it_takes_at_most_twenty_milliseconds_beyond_redis_py(tmp_path: Path) -> None:
    import_once(tmp_path)  # compiles
    runs = [import_once(tmp_path) for _ in range(11)]
    # Each run is its own measure of the machine: how fast it is changes with what runs beside.
    assert statistics.median(ours / max(1.0, theirs / THEIRS) for theirs, ours, _ in runs) <= LONGEST
