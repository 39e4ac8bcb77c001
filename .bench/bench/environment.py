"""What the figures depend on: date, machine, versions."""

import os
import platform
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from bench import event_loops
from bench.peers import PEERS
from tests.support.servers import find_binary, version_of


def describe(libraries: Iterable[str], loop: str) -> dict[str, str]:
    """Return each circumstance by its name, as text."""
    distributions = dict.fromkeys(["redis", "hiredis", *(PEERS[library].distribution for library in libraries)])
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "load before": ", ".join(f"{load:.2f}" for load in os.getloadavg()),
        "Python": sys.version.split()[0],
        "event loop": event_loops.described(loop),
        "redis-server": ".".join(map(str, version_of(find_binary()))),
        **{distribution: _version(distribution) for distribution in distributions},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
