"""`import aiolocks` is quick, and needs nothing that is optional."""

import json
import os
import subprocess
import sys
from pathlib import Path

OPTIONAL = {
    "fakeredis", "lupa", "rich", "uvloop", "pytest", "pytest_asyncio", "fastapi", "starlette", "aiohttp", "psutil",
    "trio", "hypothesis",
}  # fmt: skip

LONGEST = 0.020
"""Seconds that the import may take beyond that of redis-py's asyncio client."""

PROGRAM = """
import json, sys, time
import redis.asyncio
begun = time.perf_counter()
import aiolocks
print(json.dumps([time.perf_counter() - begun, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def import_once(cache: Path) -> tuple[float, set[str]]:
    """Import in a new process; return the seconds it took, and the packages that are there afterwards."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    seconds, packages = json.loads(output.stdout)
    return seconds, set(packages)


def test_it_imports_nothing_optional(tmp_path: Path) -> None:
    _, packages = import_once(tmp_path)
    assert not packages & OPTIONAL


def test_it_takes_at_most_twenty_milliseconds_beyond_redis_py(tmp_path: Path) -> None:
    import_once(tmp_path)  # compiles
    # Noise only adds: the quickest of several runs is closest to what the import costs.
    assert min(import_once(tmp_path)[0] for _ in range(7)) <= LONGEST
