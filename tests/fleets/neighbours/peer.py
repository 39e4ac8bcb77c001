"""Processes of two versions of aiolocks: this checkout's, and the neighbouring one that may run beside it."""

import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import pytest

from tests.support.children import family

NEIGHBOUR = "8a77591"
"""The commit of an older version: a fleet that is deployed step by step runs it beside this checkout."""

RELEASED = "9a60069"
"""The commit of 0.1.0, which knows all that the tests of two versions ask of both."""

REPOSITORY = Path(__file__).parents[3]

PATIENCE = 25.0
"""Seconds in which each answer comes; a worker's own timeout is shorter."""

_WORKER = Path(__file__).with_name("worker.py")


def neighbour(folder: Path, commit: str = NEIGHBOUR) -> Path:
    """Put the package as it was at *commit* into *folder*, which is returned.

    Where its commit is missing, as in an sdist, this skips the test. In CI, whose clone has the history, it fails.
    """
    archive = folder / "neighbour.zip"
    try:
        command = ("git", "archive", f"--output={archive}", commit, "aiolocks")
        found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        trouble = found.stderr.strip() if found.returncode else ""
    except FileNotFoundError:
        trouble = "there is no git"
    if trouble:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"commit {commit}, a neighbouring version, is not in this checkout's history: {trouble}")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
    return folder


class PeerError(Exception):
    """What a peer raised, as it says it; or that it has ended."""


@final
class Peer:
    """One process of one version; `peer(verb, …)` has it do something and returns the result.

    Invariant: each line that was sent has a future in `_asked`, until its answer came.
    """

    def __init__(self, version: str, process: "subprocess.Popen[str]") -> None:
        self.version = version
        self._process = process
        self._asked: dict[int, Future[Any]] = {}
        self._count = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __repr__(self) -> str:
        return f"Peer({self.version!r})"

    def __call__(self, verb: str, *arguments: Any, **options: Any) -> Any:
        return self.ask(verb, *arguments, **options).result(PATIENCE)

    def ask(self, verb: str, *arguments: Any, **options: Any) -> "Future[Any]":
        """Begin something; its result, or a PeerError, is in the future."""
        self._count += 1
        answer = self._asked[self._count] = Future[Any]()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([self._count, verb, arguments, options]) + "\n")
        self._process.stdin.flush()
        return answer

    def end(self) -> None:
        """Kill the process, and return when it is dead."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, result, error = json.loads(line)
            answer = self._asked.pop(number)
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(PeerError(f"{self.version}: {error}"))
        for answer in self._asked.values():
            answer.set_exception(PeerError(f"{self.version}: the process has ended"))


@contextmanager
def peer(version: str, package: Path, *urls: str) -> Iterator[Peer]:
    """Start a process that runs the package in the folder *package* with clients of *urls*; at the end, kill it."""
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = (sys.executable, str(_WORKER), *urls)
    with family(*command, stdin=subprocess.PIPE, cwd=package, env=environment) as process:
        started = Peer(version, process)
        try:
            runs = started("where")
            assert Path(runs).is_relative_to(package), f"{version} runs {runs}"
            yield started
        finally:
            started.end()
