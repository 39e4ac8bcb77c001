"""The shape of the house: imports point down, modules stay small, and what is public says what it is for."""

import ast
import inspect
import sys
from collections.abc import Callable, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from types import FrameType

import pytest
from redis.asyncio import Redis

import aiolocks
import aiolocks.events
import aiolocks.otel
import aiolocks.sync
import aiolocks.testing
from aiolocks import Lock
from tests.support.cases import one_by_one
from tests.support.servers import RedisServer

PACKAGE = Path(aiolocks.__file__).parent

LAYERS = ("_core", "_redis", "_engine", "_grantors", "_primitives")
"""Lowest first. A layer imports from layers below it; what lies beside them, in the package's own folder, from all."""

WAYS_IN = {"aiohttp", "cli", "fastapi", "otel", "testing"}
"""What nothing else imports, and so may need more than is required."""

BASES = {"base", "mode_changes", "reentry"}
"""What the siblings of the primitives' layer share; they never import each other."""

LONGEST_MODULE = 550
LONGEST_PATH = 17
"""Files from the top to the bottom, with the command line and the testing kit as one each; see `room`. A `RateLimiter`
stands on a primitive, which is one file more than the layers have."""

LONGEST_PATH_OF_FOLDERS = 10
REQUIRED = {"redis", "hiredis", "anyio"}
ON_DEMAND = {"urls": {"fakeredis"}}
files = sorted(PACKAGE.rglob("*.py"))

Graph = Mapping[str, set[str]]


def imported(file: Path, source: str | None = None, *, for_types: bool = True) -> set[str]:
    """Return the full names of what *file* imports, wherever that stands: in functions and *for_types* alone too."""
    package = ("aiolocks", *file.relative_to(PACKAGE).parent.parts)
    found = set()
    tree = ast.parse(file.read_text(encoding="utf-8") if source is None else source)
    if not for_types:
        tree.body = [
            node for node in tree.body if not isinstance(node, ast.If) or "TYPE_CHECKING" not in ast.dump(node.test)
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            parts = (*above, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                submodule = is_module(PACKAGE.parent.joinpath(*parts, alias.name))
                found.add(".".join((*parts, alias.name) if submodule else parts))
    return found


def is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def relatives(file: Path, source: str | None = None, *, for_types: bool = True) -> set[Path]:
    """Return the files of this package that *file* imports, if it were not for its name."""
    found = set()
    for name in imported(file, source, for_types=for_types):
        path = PACKAGE.joinpath(*name.split(".")[1:])
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if name.split(".")[0] == "aiolocks" and candidate.is_file():
                found.add(candidate)
    return found - {file}


def layer(file: Path) -> str:
    """Return the folder that *file* is in, of those in the package; or, of one beside the layers, its own name."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def room(file: Path) -> str:
    """Return what stands for *file* in the picture of the house: itself, or the way in that it is a part of."""
    return layer(file) if layer(file) in WAYS_IN else str(file.relative_to(PACKAGE))


def upward(file: Path, source: str | None = None) -> set[str]:
    """Return what *file* imports that does not lie below it: another layer above, or what is beside all layers."""
    if layer(file) not in LAYERS:
        return set()
    below = LAYERS[: LAYERS.index(layer(file)) + 1]
    return {str(other.relative_to(PACKAGE)) for other in relatives(file, source) if layer(other) not in below}


def house(name: Mapping[Path, str]) -> Graph:
    """Return which files import which, by the names of *name*; files of one name are one.

    An import for types alone is left out: siblings can name each other's classes by it.
    """
    return {
        one: {name[other] for file in files if name[file] == one for other in relatives(file, for_types=False)} - {one}
        for one in set(name.values())
    }


def longest_path(graph: Graph) -> list[str]:
    longest: dict[str, list[str]] = {}
    for one in TopologicalSorter(graph).static_order():
        longest[one] = [one, *max((longest[other] for other in graph[one]), key=len, default=[])]
    return max(longest.values(), key=len)


@one_by_one("source", [
    "from .._grantors.session import Session", "from aiolocks._grantors import session",
    "import aiolocks._primitives.lock", "from .. import Lock", "from .._manager import LockManager",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .._grantors.session import Session",
    "def late():\n    from .._primitives.lock import Lock",
    "class A:\n    async def late(self):\n        with a:\n            from ..cli import main",
])  # fmt: skip
def test_an_import_that_points_up_is_found_wherever_it_stands(source: str) -> None:
    assert upward(PACKAGE / "_engine" / "lease.py", source)


@one_by_one("file", files)
def test_a_module_imports_only_what_it_may_says_what_it_is_for_and_stays_small(file: Path) -> None:
    assert not upward(file)
    if layer(file) == "_primitives":
        assert not {other.stem for other in relatives(file) if layer(other) == "_primitives"} - BASES
    if layer(file) not in WAYS_IN:
        roots = {name.split(".")[0] for name in imported(file)}
        assert roots - set(sys.stdlib_module_names) - ON_DEMAND.get(file.stem, set()) <= REQUIRED | {"aiolocks"}
    source = file.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(source))
    assert len(source.splitlines()) <= LONGEST_MODULE


def test_no_import_goes_in_a_circle() -> None:
    TopologicalSorter(house({file: str(file) for file in files})).prepare()


@pytest.mark.rest
def test_the_way_down_is_short() -> None:
    assert len(path := longest_path(house({file: room(file) for file in files}))) <= LONGEST_PATH, path
    assert len(path := longest_path(house({file: layer(file) for file in files}))) <= LONGEST_PATH_OF_FOLDERS, path


@one_by_one("package", [aiolocks, aiolocks.events, aiolocks.otel, aiolocks.sync, aiolocks.testing])
def test_everything_public_has_a_docstring(package: object) -> None:
    names: list[str] = package.__all__  # type: ignore[attr-defined]  # ModuleType knows no module's own names
    assert names == sorted(names)
    bare = []
    for name in names:
        thing = getattr(package, name)
        bare += [] if inspect.getdoc(thing) else [name]
        if inspect.isclass(thing):
            ours = [base for base in thing.__mro__ if base.__module__.startswith("aiolocks")]
            members = {member: value for base in reversed(ours) for member, value in vars(base).items()}
            bare += [
                f"{name}.{member}"
                for member, value in members.items()
                if not member.startswith("_")
                and (inspect.isroutine(value) or isinstance(value, property))
                and not inspect.getdoc(value)
            ]
    assert not bare


async def changes_of_file(make: Callable[[], Lock]) -> tuple[int, int]:
    """Return how often a reader of a block changes file on the way into its body, and from there to its end."""
    way: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(PACKAGE)) and "busy_poll" not in file and file not in way[-1:]:
            way.append(file)

    sys.setprofile(note)
    async with make():
        sys.setprofile(None)
        inside = len(way) - 1
        sys.setprofile(note)
    sys.setprofile(None)
    return inside, len(way) - inside - 2


async def test_the_way_through_a_block_leads_through_few_files(server: RedisServer) -> None:
    async with Redis.from_url(server.url) as client:
        lock = Lock(client, "orders")
        for _ in range(3):  # the first connects
            async with lock:
                pass
        entering, leaving = await changes_of_file(lambda: lock)
        assert entering <= 16
        assert leaving <= 12
        assert (await changes_of_file(lambda: Lock(client, "orders")))[0] <= 24
