"""Which tests a file answers to: what a mutant of it is tried with first, in at most twenty seconds."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

REPOSITORY = Path(__file__).parents[2]

PROMISES = tuple(
    f"tests/primitives/test_conformance{of}.py" for of in ("", "_lease", "_loss", "_blocks", "_cancellation")
)

LEFT_OUT = {"__init__", "__main__", "_web", "_teaching", "_memory"}
"""No part of taking, keeping or letting go."""


@final
@dataclass(frozen=True, slots=True)
class Answering:
    """What to run: the file's own tests, in this order, then the promises of every primitive for some *rows*."""

    own: tuple[str, ...] = ()
    rows: tuple[str, ...] = ("lock",)

    @property
    def paths(self) -> tuple[str, ...]:
        return (*self.own, *(PROMISES if self.rows else ()))


def _primitive(*files: str, rows: tuple[str, ...]) -> Answering:
    return Answering(tuple(f"tests/primitives/test_{file}.py" for file in files), rows)


_SCRIPTS = ("tests/scripts", "tests/simulation/rules/test_rules.py")

_OF_PYTHON = {
    "_chain": _primitive("multilock", "hierarchy", rows=("multilock", "row of a table")),
    "_guard": _primitive("guard", rows=()),
    "_healing": Answering(("tests/simulation/rules/test_rules.py",)),
    "_hierarchy": _primitive("hierarchy", rows=("row of a table",)),
    "_keys": Answering((), ("lock",)),
    "_majority": _primitive("redlock", rows=("redlock",)),
    "_manager": _primitive("manager", rows=()),
    "_modes": _primitive("rwlock", rows=("read lock", "write lock")),
    "_multilock": _primitive("multilock", rows=("multilock",)),
    "_nest": _primitive("rlock", rows=("rlock",)),
    "_options": _primitive("options", rows=("lock",)),
    "_parts": _primitive("multilock", "hierarchy", rows=("multilock",)),
    "_quorum": _primitive("redlock", rows=("redlock",)),
    "_redlock": _primitive("redlock", rows=("redlock",)),
    "_replication": Answering(("tests/simulation/rules/test_rules.py", "tests/faults/test_replicas.py"), ()),
    "_rlock": _primitive("rlock", rows=("rlock",)),
    "_rwlock": _primitive("rwlock", rows=("read lock", "write lock")),
    "_scripts": Answering(("tests/scripts/test_loader.py",), ("lock",)),
    "_semaphore": _primitive("semaphore", "semaphore_limit", rows=("semaphore", "semaphore of 3")),
    "_upgrade": _primitive("rwlock", rows=()),
    "_versioned": _primitive("versioned", rows=()),
    "_watchdog_thread": _primitive("watchdog_thread", rows=()),
    "_with_lock": _primitive("with_lock", rows=()),
    "_blocks": _primitive("shapes", rows=("lock",)),
    "_body": _primitive("shapes", rows=("lock",)),
    "_hold": _primitive("shapes", rows=("lock",)),
    "_ledger": _primitive("shapes", rows=("lock", "multilock")),
    "_stop": _primitive("shapes", rows=("lock",)),
    "_line": Answering(("tests/simulation/rules/test_rules.py",)),
    "_request": Answering(("tests/simulation/rules/test_rules.py",)),
    "_session": Answering(("tests/simulation/rules/test_rules.py", "tests/primitives/test_conformance_session.py")),
    "_wakeups": Answering(("tests/simulation/rules/test_rules.py", "tests/primitives/test_conformance_session.py")),
    "_withdrawal": Answering(("tests/simulation/rules/test_rules.py",)),
}
"""What the other files have is the test of their unit and what every lock promises."""


@cache
def answered_by(path: str) -> Answering:
    """Return what a file answers to."""
    file = Path(path)
    if file.suffix == ".lua":
        return Answering(_SCRIPTS, ())
    own = f"tests/unit/test_{file.stem.removeprefix('_')}.py"
    named = _OF_PYTHON.get(file.stem, Answering())
    return Answering((own, *named.own), named.rows) if (REPOSITORY / own).exists() else named


def files() -> list[str]:
    """Return all files that are mutated."""
    found = [path for path in (REPOSITORY / "aiolocks").glob("_*.py") if path.stem not in LEFT_OUT]
    found += (REPOSITORY / "aiolocks" / "lua").glob("*.lua")
    return sorted(str(path.relative_to(REPOSITORY)) for path in found)
