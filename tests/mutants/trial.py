"""Tries one mutant after the other, in a copy of the repository, and keeps what became of each."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import final

from tests.mutants import of_lua, of_python
from tests.mutants.mutant import Mutant, equivalents, names
from tests.mutants.reached import Reached
from tests.mutants.table import REPOSITORY

LIMIT = 600.0
"""Seconds after which a mutant is one that hangs, which is noticed; a single test may take a tenth of that."""

CAUGHT, SURVIVED, SAME = "caught by ", "survived", "equivalent"

_AT_ONCE, _FILES = 3.0, 6
"""Seconds that the tests take which are tried first, by one process, and of how many files they are."""

_LATER = 120.0
"""Seconds that the tests take which are tried of each part but the quick one, one after the other."""

_SEEDS = 60

_FAILED = {1, 2, 3, 4}
"""A test failed, or the mutant cannot even be imported."""

_NO_TEST = 5

_NO_OUTCOME = "no outcome"
"""Nothing could be imported, or pytest was ended by its timeout."""

_PLANTING = ("test_defects.py", "test_attached.py", "test_teeth.py")
"""Tests that plant defects of their own, which one that is there already may hide."""


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


@final
class Trial:
    """A copy of the repository in which mutants are tried."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self._written_at = int(time.time())
        self._passing: dict[str, bool] = {}

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        home = self._folder / mutant.path
        text = home.read_text(encoding="utf-8")
        self._write(home, mutant.apply(text))
        try:
            yield
        finally:
            self._write(home, text)

    def _write(self, home: Path, text: str) -> None:
        """Write a file anew; Python tells by its size and the second of its time whether it must be compiled anew."""
        home.write_text(text, encoding="utf-8")
        self._written_at += 1
        os.utime(home, (self._written_at, self._written_at))

    def caught_by(self, mutant: Mutant, parts: Sequence[Reached]) -> str:
        """Return the test that fails with the mutant, or nothing."""
        return next(filter(None, self._tries(mutant, parts)), "")

    def _tries(self, mutant: Mutant, parts: Sequence[Reached]) -> Iterator[str]:
        tried = set[str]()
        for part in parts:
            tests = [test for test in part.tests(mutant) if not _path(test).endswith(_PLANTING)]
            if part.part == "quick":
                first = _first(tests, part.took, _AT_ONCE, _FILES)
                yield self.one_of(first, mutant)
                yield self.one_of([test for test in tests if test not in first], mutant, self._workers)
            else:
                others = [test for test in tests if _function(test) not in tried]
                yield self.one_of(_first(others, part.took, _LATER), mutant, 2 * self._workers)
            tried.update(map(_function, tests))
        if len(parts) > 1:
            with self.planted(mutant):
                yield self._simulated()

    def one_of(self, tests: Sequence[str], mutant: Mutant, workers: int = 0) -> str:
        """Return one that notices the mutant: it fails twice, once by itself, and passes without the mutant."""
        left = list(tests)
        while left:
            with self.planted(mutant):
                failed = self.fails(left, workers)
                again = failed in left and self.fails([failed])
            assert failed != _NO_OUTCOME or self.fails(left) != failed, f"without a mutant neither: {left[0]}"
            if failed not in left or (again and self._passes(failed)):
                return failed
            left.remove(failed)
        return ""

    def _passes(self, test: str) -> bool:
        if test not in self._passing:
            self._passing[test] = not self.fails([test])
        return self._passing[test]

    def fails(self, tests: Sequence[str], workers: int = 0) -> str:
        """Run tests, and return the one that failed, or that they did not end; or nothing."""
        wanted, failed = self._folder / ".only", self._folder / ".failed"
        wanted.write_text("\n".join(tests), encoding="utf-8")
        failed.write_text("", encoding="utf-8")
        files = [path for path in dict.fromkeys(map(_path, tests)) if (self._folder / path).exists()]
        command = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.only"]
        command += ["-n", str(workers), "--maxschedchunk", "4", "-o", f"timeout={LIMIT / 10}", *files]
        status = self._run(command, {"AIOLOCKS_ONLY": str(wanted), "AIOLOCKS_FAILED": str(failed)}) if files else 0
        if status is None or status < 0:
            return "no end" if status is None else "a crash of the interpreter"
        if status not in _FAILED:
            assert status in {0, _NO_TEST}, f"pytest ended with {status}"
            return ""
        return failed.read_text(encoding="utf-8").partition("\n")[0] or _NO_OUTCOME

    def _simulated(self) -> str:
        first = random.randrange(2**31)
        seeds = f"range({first}, {first + _SEEDS})"
        run = f"any(run_seeds({seeds}, cluster=cluster, until_failed=1).failed for cluster in (False, True))"
        status = self._run(["-c", f"from tests.simulation.runner import run_seeds; import sys; sys.exit({run})"])
        return "" if status == 0 else f"simulation, --start {first}"

    def _run(self, command: Sequence[str], environment: dict[str, str] | None = None) -> int | None:
        """Return its exit status, or None if it did not end. A worker of pytest-xdist may call this."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
        with subprocess.Popen(
            [sys.executable, *command], cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**inherited, **(environment or {}), "PYTHONPATH": str(self._folder)}, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                return process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                return None


def _first(tests: Sequence[str], took: dict[str, float], longest: float, files: int = 10_000) -> list[str]:
    """Return those from the front of so many files that together take no longer than that."""
    known = list(dict.fromkeys(map(_path, tests)))[:files]
    ends, end = dict[str, float](), 0.0
    for test in tests:
        if _path(test) in known:
            ends[test] = end = end + took[test]
    return list(takewhile(lambda test: ends[test] <= longest, ends))


def _path(test: str) -> str:
    return test.partition("::")[0]


def _function(test: str) -> str:
    return test.partition("[")[0]


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


def verdict(trial: Trial, mutant: Mutant, parts: Sequence[Reached]) -> str:
    if is_equivalent(mutant):
        return SAME
    by = trial.caught_by(mutant, parts)
    return CAUGHT + by if by else SURVIVED
