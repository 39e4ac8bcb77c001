"""A real PostgreSQL for tests: in a directory of its own, on a unix socket alone, gone without a trace afterwards."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_WHERE_DEBIAN_HAS_IT = "/usr/lib/postgresql/*/bin"
_USER = "nobody"
"""Who runs it if the tests run as root, which PostgreSQL refuses to do."""


def _programs() -> Path | None:
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    return max((path for path in Path("/").glob(_WHERE_DEBIAN_HAS_IT[1:]) if (path / "initdb").exists()), default=None)


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server with one empty database, and yield its URL. Skip the test where there is no PostgreSQL."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    user = _USER if os.geteuid() == 0 else None
    directory = tempfile.mkdtemp(prefix="pg")
    data = f"{directory}/data"
    try:
        if user:
            shutil.chown(directory, user)

        def run(program: str, *arguments: str) -> None:
            command = [str(programs / program), *arguments]
            subprocess.run(command, user=user, cwd=directory, check=True, timeout=50, stdout=subprocess.DEVNULL)

        run("initdb", "-D", data, "-U", "shop", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        options = f"-k {directory} -c listen_addresses= -c fsync=off"
        run("pg_ctl", "-D", data, "-l", f"{directory}/log", "-o", options, "-w", "start")
        try:
            yield f"postgresql://shop@/postgres?host={directory}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
