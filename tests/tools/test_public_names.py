"""The tests of what is promised use public names: ours, and those of redis-py and asyncio.

What they have to know of the inside, `tests/support/inside.py` knows for them.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
FOLDERS = ("primitives", "faults")
INSIDE = TESTS / "support" / "inside.py"
PLANTING = {TESTS / "support" / "garden.py", TESTS / "support" / "teeth.py"}
"""They plant defects into the package, and try tests with them."""

REGISTRY = "aiolocks._core.kinds"
"""Every table of kinds is made from it, those of the tests too."""

PUBLIC_ALL_THE_SAME = {"os._exit"}

MOST_NAMES = 28
"""In `inside`. What needs another one may be a test of the inside: those are in `tests/unit`."""

_PATH = re.compile(r"(aiolocks|redis|asyncio)(\.\w+)*\._[a-z]\w*(\.\w+)*")
_PARTS = re.compile(r"import (aiolocks|asyncio|redis)|from (aiolocks|asyncio|redis)\b")

BY_NAME = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "object"}
"""Functions and methods that take the name of an attribute as text."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(source: str) -> list[str]:
    """Return each private name in *source* that its own classes do not define, with its line."""
    tree = ast.parse(source)
    own = set(_defined(tree))
    return [f"{line}: {name}" for node in ast.walk(tree) for line, name in _private_in(node, own)]


def _defined(tree: ast.AST) -> Iterator[str]:
    """Return the attributes that classes of this file define or set on themselves."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _of_itself(node):
            yield node.attr
        elif isinstance(node, ast.ClassDef):
            targets: list[ast.expr] = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
            targets += [target for one in node.body if isinstance(one, ast.Assign) for target in one.targets]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _of_itself(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _private_in(node: ast.AST, own: set[str]) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _private_import(node.lineno, alias.name)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield from _private_import(node.lineno, f"{node.module or ''}.{alias.name}")
    elif isinstance(node, ast.Attribute) and private(node.attr):
        whole = ast.unparse(node)
        if not (_of_itself(node) and node.attr in own) and whole not in PUBLIC_ALL_THE_SAME:
            yield node.lineno, whole
    elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in BY_NAME:
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        yield from ((node.lineno, text) for text in texts if any(map(private, text.split("."))))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from ((node.lineno, name) for name in _private_in_text(node.value))


def _private_import(line: int, name: str) -> Iterator[tuple[int, str]]:
    if any(map(private, name.split("."))) and not f"{name}.".startswith(f"{REGISTRY}."):
        yield line, name


def _private_in_text(text: str) -> list[str]:
    """Return what a path to a module or an attribute names, or a program that is run by another Python."""
    if _PATH.fullmatch(text):
        return [text]
    if _PARTS.search(text):
        try:
            return private_names(text)
        except SyntaxError:
            return []
    return []


def imported_support(file: Path) -> set[Path]:
    """Return the modules of the support folders that *file* imports, by name or as plugins of pytest."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(("tests", *file.relative_to(TESTS).parent.parts)) if node.level else ""
            module = ".".join(filter(None, (package, node.module)))
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytest_plugins":
            names |= set(ast.literal_eval(node.value))
    paths = {TESTS.parent.joinpath(*name.split(".")).with_suffix(".py") for name in names if ".support." in name}
    return {path for path in paths if path.is_file() and path != INSIDE} - PLANTING


@cache
def files() -> list[Path]:
    """Return all files of the folders, and the modules of the support folders that they use."""
    found: set[Path] = set()
    todo = {TESTS / "conftest.py", *(file for folder in FOLDERS for file in (TESTS / folder).rglob("*.py"))}
    while todo:
        found |= todo
        todo = {module for file in todo for module in imported_support(file)} - found
    return sorted(found)


@pytest.mark.rest
def test_tests_of_what_is_promised_and_their_helpers_use_public_names_only() -> None:
    looked_at = {str(file.relative_to(TESTS)) for file in files()}  # a test, a program, a plugin, an import's import
    assert looked_at >= {"faults/test_rwlock.py", "faults/support/worker.py", "support/table.py", "support/lateness.py"}
    found = {str(file.relative_to(TESTS)): private_names(file.read_text(encoding="utf-8")) for file in files()}
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from aiolocks._grantors.session import Session",
        "from aiolocks import _manager",
        "import aiolocks._primitives.lock",
        "from aiolocks.testing._resp import Scanner",
        "def late():\n    from redis._parsers import Encoder",
        "lock._keys.base",
        "pool._available_connections",
        "asyncio._get_running_loop()",
        "getattr(loop, '_scheduled', [])",
        "monkeypatch.setattr(pool, '_checked', 1)",
        "monkeypatch.setattr('aiolocks._engine.context.IDLE', 1)",
        "importlib.import_module('aiolocks._engine.context')",
        "class Proxy(FaultProxy):\n    def orders(self):\n        return self._faults.orders",
        "PROGRAM = 'from aiolocks._core.keys import Keys\\nprint(Keys)'",
        "PROGRAM = 'import aiolocks; print(aiolocks.Lock._x)'",
    ],
)
def test_a_private_name_is_found(source: str) -> None:
    assert private_names(source)


@pytest.mark.parametrize(
    "source",
    [
        "from __future__ import annotations",
        "from aiolocks import Lock as _Lock",
        "os._exit(0)",
        "lock.__class__",
        "class Mine:\n    def __init__(self):\n        self._x = 1\n    def x(self):\n        return self._x",
        "f'{script}'.replace('/', '_')",
        "'lock_grant'",
    ],
)
def test_a_public_name_and_one_of_its_own_are_no_private_name(source: str) -> None:
    assert private_names(source) == []


def test_the_inside_is_small_and_each_of_its_names_is_used_and_says_what_it_is() -> None:
    tree = ast.parse(INSIDE.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = [node for node in tree.body if isinstance(node, kinds) and not private(node.name)]
    assert len(public) <= MOST_NAMES
    assert [node.name for node in public if not ast.get_docstring(node)] == []
    used = {word for file in files() for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}
    functions = [node for node in public if isinstance(node, ast.FunctionDef)]
    returned = {word for node in functions if node.returns for word in re.findall(r"\w+", ast.unparse(node.returns))}
    assert {node.name for node in public} - used - returned == set()
