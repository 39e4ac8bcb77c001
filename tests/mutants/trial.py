"""Tries one mutant after the other, in a copy of the repository, and keeps what became of each."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

from tests.mutants import of_lua, of_python
from tests.mutants.mutant import Mutant, equivalents, names
from tests.mutants.table import REPOSITORY, Answering, answered_by

LIMIT = 60.0
"""Seconds after which a mutant is one that hangs, which is noticed: a file's tests take a third of it at most."""

CAUGHT, SURVIVED, SAME = "caught by ", "survived", "equivalent"

_FIRST_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)

_FAILED = {1, 2, 3, 4}
"""A test failed, or the mutant cannot even be imported."""


def mutants_of(path: str) -> list[Mutant]:
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    return of_lua.mutants(path, text) if path.endswith(".lua") else of_python.mutants(path, text)


def described(mutant: Mutant) -> str:
    return mutant.described((REPOSITORY / mutant.path).read_text(encoding="utf-8"))


def is_equivalent(mutant: Mutant) -> bool:
    """Return whether a comment beside its line says that no test can notice it."""
    text = (REPOSITORY / mutant.path).read_text(encoding="utf-8")
    said = equivalents(text).get(mutant.line(text), set())
    return bool(said and said & names(mutant, mutants_of(mutant.path), text))


def readme_command() -> list[str]:
    """Return what README's command runs, for those that the tests of their own file let through."""
    lines = (REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()
    command = lines[lines.index("<!-- test-command -->") + 2]
    return shlex.split(command.rpartition("-m pytest ")[2])


@final
class Trial:
    """A copy of the repository in which mutants are tried."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self._written_at = int(time.time())

    def caught_by(
        self, mutant: Mutant, arguments: Sequence[str], rows: Iterable[str] = (), limit: float = LIMIT
    ) -> str:
        """Return the test that fails with the mutant, or nothing."""
        home = self._folder / mutant.path
        text = home.read_text(encoding="utf-8")
        self._write(home, mutant.apply(text))
        try:
            return self.fails(arguments, rows, limit)
        finally:
            self._write(home, text)

    def _write(self, home: Path, text: str) -> None:
        """Write a file anew; Python tells by its size and the second of its time whether it must be compiled anew."""
        home.write_text(text, encoding="utf-8")
        self._written_at += 1
        os.utime(home, (self._written_at, self._written_at))

    def fails(self, arguments: Sequence[str], rows: Iterable[str] = (), limit: float = LIMIT) -> str:
        """Run tests, and return the one that failed, or that they did not end; or nothing."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.only"]
        command += ["-o", f"timeout={limit / 3}"]
        environment = {**os.environ, "AIOLOCKS_ROWS": ",".join(rows), "AIOLOCKS_WITHOUT_MEMORY": "1"}
        with subprocess.Popen(
            [*command, *arguments], cwd=self._folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                said, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.communicate()
                return "no end"
        if process.returncode not in {0, *_FAILED}:
            raise RuntimeError(f"pytest ended with {process.returncode}:\n{said.decode()[-2000:]}")
        if process.returncode == 0:
            return ""
        failed = _FIRST_FAILED.search(said.decode())
        return failed[1] if failed else "no beginning"

    def own(self, tests: Answering) -> Iterator[list[str]]:
        """Yield arguments for what a file answers to: first what takes a second or two, as most are caught by that."""
        if tests.at_once:
            yield ["-n", "0", "-m", "not slow", *tests.at_once]
        if tests.asleep:
            yield ["-n", str(self._workers), "--dist", "worksteal", "-m", "not slow", *tests.asleep]


@contextmanager
def copied(workers: int) -> Iterator[Trial]:
    """Copy the repository, without what git does not know, and remove the copy in the end."""
    with tempfile.TemporaryDirectory(prefix="aiolocks-mutants-") as folder:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True)
        for name in listed.stdout.decode().split("\0"):
            if name and (REPOSITORY / name).exists():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, Path(folder) / name)
        yield Trial(Path(folder), workers)


@final
class Record:
    """What became of each mutant so far, a line each, so that a run that was stopped can go on."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        self.known: dict[str, str] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume and path.exists():
            self.known = dict(map(json.loads, path.read_text(encoding="utf-8").splitlines()))
        else:
            path.write_text("", encoding="utf-8")

    def add(self, name: str, verdict: str) -> None:
        self.known[name] = verdict
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, verdict]) + "\n")


def verdict(trial: Trial, mutant: Mutant) -> str:
    if is_equivalent(mutant):
        return SAME
    tests = answered_by(mutant.path)
    runs = (trial.caught_by(mutant, arguments, tests.rows) for arguments in trial.own(tests))
    return next((CAUGHT + by for by in runs if by), SURVIVED)


def whole_verdict(trial: Trial, mutant: Mutant) -> str:
    by = trial.caught_by(mutant, readme_command(), limit=10 * LIMIT)
    return CAUGHT + by if by else SURVIVED
