"""Which tests run a line of the package, or send one of its scripts, and how long each takes.

As a plugin of pytest it records that, by coverage.py. What other processes run is not seen.
"""

import ast
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, final

import coverage
import pytest

from aiolocks._redis import scripts
from tests.mutants.mutant import Mutant
from tests.mutants.table import REPOSITORY

FOLDER = "AIOLOCKS_REACHED"
"""The variable that names the folder where each process of pytest leaves what it found."""

PARTS = {"quick": 3, "rest": 6, "faults": 4}
"""In how many processes each is recorded."""

MANY = 400
"""Lines that may change before all is recorded again."""


@final
class Recorder:
    """Notes what each test runs; in coverage.py each test is a context."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._took: dict[str, float] = {}
        self._sent = defaultdict[str, set[str]](set)
        self._test = ""
        self._coverage = coverage.Coverage(
            data_file=folder / "lines", data_suffix=str(os.getpid()), include=["aiolocks/*"], config_file=False
        )
        for attribute in ("sha", "source", "templates"):
            self._watch(attribute)
        self._coverage.start()

    def _watch(self, attribute: str) -> None:
        """Take a script for sent where its text is read, or what is kept of it."""
        slot: Any = getattr(scripts.Script, attribute)

        def read(script: scripts.Script) -> object:
            self._sent[self._test].add(script.name)
            return slot.__get__(script)

        setattr(scripts.Script, attribute, property(read, slot.__set__))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        begun, self._test = time.monotonic(), item.nodeid
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._took[item.nodeid], self._test = time.monotonic() - begun, ""
            self._coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        found = {"took": self._took, "sent": {test: sorted(names) for test, names in self._sent.items()}}
        (self._folder / f"tests.{os.getpid()}").write_text(json.dumps(found), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if FOLDER in os.environ and not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recorder(Path(os.environ[FOLDER])))


@final
class Reached:
    """What the tests of one part reach, as recorded at some commit; a file that changed since is one line."""

    def __init__(self, part: str, folder: Path = REPOSITORY / ".mutants") -> None:
        self.part = part
        self._folder = folder / f"reached-{part}"
        self._commit = self._folder / "commit"
        if not self._commit.exists() or sum(self._changes().values()) > MANY:
            self._record()
        self._changed = self._changes()
        self.took: dict[str, float] = {}
        self._sent: dict[str, list[str]] = {}
        for file in self._folder.glob("tests.*"):
            found = json.loads(file.read_text(encoding="utf-8"))
            self.took |= found["took"]
            self._sent |= found["sent"]
        self._read = cache(self._contexts)

    def _changes(self) -> dict[str, int]:
        commit = self._commit.read_text(encoding="utf-8")
        rows = [row.split("\t") for row in _git("diff", "--numstat", commit, "--", "aiolocks", "tests").splitlines()]
        return {path: int(more) + int(fewer) for more, fewer, path in rows}

    def _record(self) -> None:
        print(f"recording what the tests of the part {self.part!r} reach", flush=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        for file in self._folder.iterdir():
            file.unlink()
        commit = _git("rev-parse", "HEAD").strip()
        command = ["-m", "pytest", "-qq", "-p", "tests.mutants.reached", "-p", "no:cacheprovider", "--part", self.part]
        subprocess.run(
            [sys.executable, *command, "-n", str(PARTS[self.part]), "--dist", "worksteal"],
            cwd=REPOSITORY, env={**os.environ, FOLDER: str(self._folder)}, stdout=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        self._commit.write_text(commit, encoding="utf-8")

    def tests(self, mutant: Mutant) -> list[str]:
        """Return those that reach it, first those named after its file, and of these the shortest first.

        At the end come the others named after its file: they may run it in another process, or only import it.
        """
        own = f"/test_{Path(mutant.path).stem.removeprefix('_')}"
        if mutant.path.endswith(".lua"):
            sending = senders(mutant.path)
            found = {test for test, sent in self._sent.items() if not sending.isdisjoint(sent)}
        else:
            found = self._of_python(mutant)
        tried = (test for test in self.took if test in found or own in test)
        return sorted(tried, key=lambda test: (test not in found, own not in test, self.took[test]))

    def _of_python(self, mutant: Mutant) -> set[str]:
        by_line = self._read(mutant.path)
        text = (REPOSITORY / mutant.path).read_text(encoding="utf-8")
        first = mutant.line(text)
        exact = range(first, first + text.count("\n", mutant.start, mutant.end) + 1)
        wider = () if mutant.path in self._changed else ranges(text, first, exact)
        found = (set[str]().union(*(by_line.get(line, ()) for line in lines)) for lines in wider)
        return next(filter(None, found), None) or set[str]().union(*by_line.values())

    def _contexts(self, path: str) -> dict[int, list[str]]:
        found = defaultdict[int, list[str]](list)
        for file in self._folder.glob("lines.*"):
            data = coverage.CoverageData(basename=str(file))
            data.read()
            for line, tests in data.contexts_by_lineno(str(REPOSITORY / path)).items():
                found[line] += filter(None, tests)
        return found


def ranges(text: str, first: int, exact: range) -> Sequence[range]:
    """Return where to look: at its lines, if they run when the function is called, and in its innermost function."""
    functions = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= first <= (node.end_lineno or 0)
    ]
    if not functions:
        return ()
    innermost = max(functions, key=lambda node: node.lineno)
    body = range(innermost.body[0].lineno, (innermost.end_lineno or 0) + 1)
    return (exact, body) if first in body else (body,)


@cache
def senders(path: str) -> set[str]:
    """Return the scripts in which a Lua file stands."""
    folder = REPOSITORY / "aiolocks" / "_redis" / "lua"
    own = str(Path(path).with_suffix("").relative_to("aiolocks/_redis/lua"))
    names = [str(file.with_suffix("").relative_to(folder)) for file in folder.glob("*/*.lua")]
    found = {own}
    for name in names:
        text = (folder / f"{name}.lua").read_text(encoding="utf-8")
        parts = [f"libraries/{library}" for library in scripts.libraries_of(scripts.text_of(name))]
        if own in parts or f"-- like {own}" in " ".join(text.split()):
            found.add(name)
    return found


def _git(*command: str) -> str:
    return subprocess.run(["git", *command], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
