"""Which tests a file answers to: what a mutant of it is tried with first, in at most twenty seconds."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

REPOSITORY = Path(__file__).parents[2]

PROMISES = tuple(
    f"tests/primitives/test_conformance{of}.py" for of in ("", "_lease", "_loss", "_blocks", "_cancellation")
)

_AT_ONCE = ("tests/unit", "tests/scripts", "tests/simulation")

LEFT_OUT = {"__init__", "__main__", "_web", "hints", "in_memory"}
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

    @property
    def at_once(self) -> tuple[str, ...]:
        """What keeps a processor busy, and needs no others beside it."""
        return tuple(path for path in self.paths if path.startswith(_AT_ONCE))

    @property
    def asleep(self) -> tuple[str, ...]:
        """What sleeps most of the time."""
        return tuple(path for path in self.paths if not path.startswith(_AT_ONCE))


def _units(*names: str) -> tuple[str, ...]:
    return tuple("tests/unit/{}/test_{}.py".format(*name.split("/")) for name in names)


_TERMS = _units("primitives/terms")


def _primitive(*files: str, rows: tuple[str, ...], unit: tuple[str, ...] = ()) -> Answering:
    return Answering((*unit, *(f"tests/primitives/test_{file}.py" for file in files)), rows)


_RULES = ("tests/simulation/rules",)

_SCRIPTS = ("tests/scripts", *_RULES)

_LEASES = _units("engine/acquire", "engine/lease", "engine/cancellation", "engine/block")
"""What speaks of one lease and its block, in virtual time."""

_SESSION = _units("grantors/session", "core/background", "grantors/wakeups", "grantors/wait_queue")

_OF_PYTHON = {
    "_core/answers": Answering(_units("core/ask_until", "redis/patience")),
    "_core/errors": _primitive("errors", rows=("lock",)),
    "_core/guard_commands": Answering(_units("engine/guard"), ()),
    "_core/keys": Answering((), ("lock",)),
    "_core/modes": _primitive("rwlock", rows=("read lock",)),
    "_core/options": _primitive("options", rows=("lock",)),
    "_core/timing": Answering(_units("grantors/wait_queue")),
    "_core/events": Answering(_units("engine/events"), ()),
    "_engine/acquire": Answering(_units("engine/events", "redis/patience")),
    "_engine/block": Answering(_LEASES),
    "_engine/cancellation": Answering(_units("engine/acquire")),
    "_engine/context": Answering((*_SESSION, "tests/primitives/test_conformance_session.py"), ()),
    "_engine/guard": Answering((*_units("redis/patience"), "tests/primitives/test_guard.py"), ()),
    "_engine/holdings": Answering(_LEASES),
    "_engine/lease": Answering(_LEASES),
    "_engine/lease_state": Answering((*_LEASES, *_units("engine/renewal", "engine/events"))),
    "_engine/must_await": Answering(_units("engine/acquire"), ()),
    "_engine/release": Answering(_RULES, ()),
    "_engine/renewal": _primitive("watchdog_thread", rows=()),
    "_engine/request": Answering((*_units("engine/acquire", "grantors/wait_queue"), *_RULES), ()),
    "_grantors/all_of": _primitive(
        "multilock", "hierarchy", rows=("multilock",), unit=_units("primitives/multilock", "primitives/hierarchy")
    ),
    "_grantors/one_server": Answering(_units("redis/patience", "grantors/replication")),
    "_grantors/parts": _primitive("multilock", "redlock", rows=("multilock", "redlock"), unit=_units("grantors/parts")),
    "_grantors/quorum": _primitive("redlock", rows=("redlock",)),
    "_grantors/replication": Answering((*_units("grantors/one_server"), "tests/faults/test_replicas.py"), ()),
    "_grantors/session": Answering((*_SESSION, "tests/primitives/test_conformance_session.py"), ()),
    "_grantors/tracking": Answering(("tests/primitives/test_track.py",), ()),
    "_grantors/wait_queue": Answering((*_units("grantors/wakeups"), *_RULES), ()),
    "_primitives/base": _primitive("options", rows=("lock",)),
    "_primitives/hierarchy": _primitive("hierarchy", rows=("row of a table",), unit=_TERMS),
    "_primitives/lock": _primitive("options", rows=("lock",), unit=_TERMS),
    "_primitives/mode_changes": _primitive("rwlock", rows=()),
    "_primitives/multilock": _primitive("multilock", rows=("multilock",), unit=_TERMS),
    "_primitives/redlock": _primitive("redlock", rows=("redlock",), unit=_TERMS),
    "_primitives/reentry": _primitive("rlock", rows=("rlock",), unit=_units("primitives/rlock")),
    "_primitives/rlock": _primitive("rlock", rows=("rlock",), unit=_TERMS),
    "_primitives/rwlock": _primitive(
        "rwlock", rows=("write lock",), unit=(*_TERMS, *_units("primitives/mode_changes"))
    ),
    "_primitives/semaphore": _primitive(
        "semaphore", "semaphore_limit", rows=("semaphore", "semaphore of 3"), unit=_TERMS
    ),
    "_primitives/versioned": _primitive("versioned", rows=()),
    "_redis/clients": _primitive("options", rows=("lock",), unit=_units("primitives/base")),
    "_redis/pipeline": Answering(_units("redis/patience")),
    "_redis/scripts": Answering(("tests/scripts/test_loader.py",), ("lock",)),
    "_redis/subscriber": Answering((*_units("grantors/session"), "tests/primitives/test_conformance_session.py")),
    "_decorator": _primitive("with_lock", rows=()),
    "_manager": _primitive("manager", rows=()),
}
"""What they have beside the tests of their unit, which begin with the file's name."""


@cache
def answered_by(path: str) -> Answering:
    file = Path(path)
    if file.suffix == ".lua":
        return Answering(_SCRIPTS, ())
    name = "/".join(file.with_suffix("").parts[1:])
    units = REPOSITORY / "tests" / "unit" / file.parent.name.removeprefix("_")
    own = tuple(str(unit.relative_to(REPOSITORY)) for unit in sorted(units.glob(f"test_{file.stem}*.py")))
    named = _OF_PYTHON.get(name, Answering())
    return Answering((*own, *(path for path in named.own if path not in own)), named.rows)


def files() -> list[str]:
    package = REPOSITORY / "aiolocks"
    found = [path for path in (*package.glob("_*.py"), *package.glob("_*/*.py")) if path.stem not in LEFT_OUT]
    found += package.glob("_redis/lua/**/*.lua")
    return sorted(str(path.relative_to(REPOSITORY)) for path in found)
