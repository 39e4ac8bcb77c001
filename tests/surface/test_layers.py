"""The shape of the house: imports point down, modules stay small, and what is public says what it is for."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import aiolocks
import aiolocks.testing
from tests.support.cases import one_by_one

PACKAGE = Path(aiolocks.__file__).parent

LAYERS = {
    "pure": "_errors _deadlines _keys _modes _options _teaching _batch _quorum",
    "redis": "_scripts _bound _patrol _vigil _link _trouble _commands",
    "engine": "_request _replication _line _healing _grantor _wakeups _ledger _lease_state _lease _watchdog "
    "_watchdog_thread _withdrawal _loop_end _session _stop _body _blocks _guard _hold _insist _nest _upgrade _parts "
    "_chain _majority",
    "primitives": "_acquirable _hierarchy _lock _multilock _redlock _rlock _rwlock _semaphore _versioned",
    "manager": "_memory _manager _web _with_lock",
    "surface": "__init__ __main__ aiohttp cli fastapi testing",
}
"""Lowest first. A module imports from its own layer and from those below."""

WAYS_IN = {"aiohttp", "cli", "fastapi", "testing"}
"""What nothing else imports, and so may need more than is required."""

BASES = {"_acquirable"}
"""What the siblings of the primitives layer share; they never import each other."""

LONGEST_MODULE = 550
REQUIRED = {"redis", "hiredis", "anyio"}
OPTIONAL = {"aiohttp", "fakeredis", "fastapi", "hypothesis", "lupa", "pytest", "rich", "starlette", "trio", "uvloop"}

rank = {module: number for number, modules in enumerate(LAYERS.values()) for module in modules.split()}
files = sorted(PACKAGE.rglob("*.py"))


def member(file: Path) -> str:
    """Return the name under which the table has *file*: a module's own, or its subpackage's."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imported(file: Path) -> frozenset[str]:
    """Return the full names of the modules that importing *file* imports."""
    package = ("aiolocks", *file.relative_to(PACKAGE).parent.parts)
    found = set()
    for node in module_level(ast.parse(file.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            source = (*above, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                submodule = is_module(PACKAGE.parent.joinpath(*source, alias.name))
                found.add(".".join((*source, alias.name) if submodule else source))
    return frozenset(found)


def is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield each statement that runs on import: no function's, and none that only type checkers see."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from module_level(node.orelse)
            continue
        yield node
        for block in ("body", "orelse", "finalbody"):
            yield from module_level(getattr(node, block, []))
        for handler in getattr(node, "handlers", []):
            yield from module_level(handler.body)


def members_imported(file: Path) -> set[str]:
    """Return which of the table's modules *file* imports."""
    inside = [f"{name}.__init__".split(".") for name in imported(file) if name.split(".")[0] == "aiolocks"]
    return {parts[1] for parts in inside} - {member(file)}


def test_every_module_has_a_layer() -> None:
    assert {member(file) for file in files} == rank.keys()


@one_by_one("file", files)
def test_imports_point_down(file: Path) -> None:
    above = {name for name in members_imported(file) if rank[name] > rank[member(file)]}
    assert not above


@one_by_one("file", files)
def test_primitives_do_not_import_each_other(file: Path) -> None:
    primitives = set(LAYERS["primitives"].split()) - BASES
    if member(file) in primitives | BASES:
        assert not members_imported(file) & primitives


@one_by_one("file", files)
def test_no_import_goes_in_a_circle(file: Path) -> None:
    """Only what type checkers see, and what is imported within a function, may point back."""
    seen: set[Path] = set()
    todo = {file}
    while todo:
        for other in relatives(todo.pop()) - seen:
            seen.add(other)
            todo.add(other)
    assert file not in seen


def relatives(file: Path) -> set[Path]:
    """Return the files of this package that *file* imports."""
    found = set()
    for name in imported(file):
        path = PACKAGE.joinpath(*name.split(".")[1:])
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if name.startswith("aiolocks") and candidate.is_file():
                found.add(candidate)
    return found


@one_by_one("file", (file for file in files if member(file) not in WAYS_IN))
def test_modules_import_only_what_is_required(file: Path) -> None:
    roots = {name.split(".")[0] for name in imported(file)}
    assert roots - set(sys.stdlib_module_names) <= REQUIRED | {"aiolocks"}


def test_importing_the_package_imports_no_optional_dependency() -> None:
    program = "import sys, aiolocks; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "redis" in loaded
    assert not OPTIONAL & set(loaded)


@one_by_one("file", files)
def test_modules_say_what_they_are_for_and_stay_small(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(source))
    assert len(source.splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("package", [aiolocks, aiolocks.testing], ids=lambda package: package.__name__)
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
