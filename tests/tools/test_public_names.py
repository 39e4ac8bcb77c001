"""The tests of what is promised use public names; what they must know of the inside is in `tests/support/inside.py`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cases import one_by_one

TESTS = Path(__file__).parent.parent
INSIDE = TESTS / "support" / "inside.py"

INTERNAL = {"answering", "answering_nodes", "extension", "jumping", "pipelines", "planted", "secrets"}
"""Modules of `support` for tests of the inside, which the others do not import."""

REGISTRY = "aiolocks._core.kinds"
"""Every table of kinds is made from it, those of the tests too."""

_PATH = re.compile(rf"(aiolocks|redis|asyncio)(\.\w+)*\._[a-z]\w*(\.\w+)*|tests\.support\.({'|'.join(INTERNAL)})")
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
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.Attribute(ctx=ast.Store()) if _of_itself(node):
                yield node.attr
            case ast.ClassDef():
                targets: list[ast.expr] = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
                targets += [target for one in node.body if isinstance(one, ast.Assign) for target in one.targets]
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def _of_itself(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _private_in(node: ast.AST, own: set[str]) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Import(names=names):
            yield from ((node.lineno, one.name) for one in names if _private_module(one.name))
        case ast.ImportFrom(names=names):
            package = "tests.support." if node.level else ""
            paths = [f"{package}{node.module or ''}.{one.name}" for one in names]
            yield from ((node.lineno, path) for path in paths if _private_module(path))
        case ast.Attribute(attr=name) if private(name):
            whole = ast.unparse(node)
            if not (_of_itself(node) and name in own) and whole != "os._exit":
                yield node.lineno, whole
        case ast.Call(func=function) if ast.unparse(function).rpartition(".")[2] in BY_NAME:
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            yield from ((node.lineno, text) for text in texts if any(map(private, text.split("."))))
        case ast.Constant(value=str(text)):
            yield from ((node.lineno, name) for name in _private_in_text(text))


def _private_module(name: str) -> bool:
    internal = name.startswith("tests.support.") and name.split(".")[2] in INTERNAL
    return internal or (any(map(private, name.split("."))) and not f"{name}.".startswith(f"{REGISTRY}."))


def _private_in_text(text: str) -> list[str]:
    """Return what a path to a module or an attribute names, or a program that is run by another Python."""
    if _PATH.fullmatch(text):
        return [text]
    try:
        return private_names(text) if _PARTS.search(text) else []
    except SyntaxError:
        return []


def texts() -> dict[str, str]:
    """Return the tests of what is promised, and the modules that they share with each other."""
    paths = [TESTS / "conftest.py", *(TESTS / "primitives").rglob("*.py"), *(TESTS / "faults").rglob("*.py")]
    excused = INTERNAL | {"inside", "garden", "teeth"}  # the last two plant defects into the package
    paths += [path for path in (TESTS / "support").glob("*.py") if path.stem not in excused]
    return {str(path.relative_to(TESTS)): path.read_text(encoding="utf-8") for path in paths}


@pytest.mark.rest
def test_tests_of_what_is_promised_and_their_helpers_use_public_names_only() -> None:
    found = {path: private_names(text) for path, text in texts().items()}
    assert {path: names for path, names in found.items() if names} == {}


@one_by_one("source", [
    "from aiolocks._grantors.session import Session", "from aiolocks import _manager",
    "import aiolocks._primitives.lock", "from aiolocks.testing._resp import Scanner",
    "def late():\n    from redis._parsers import Encoder", "from tests.support.answering import Answering",
    "from tests.support import secrets", "from .jumping import timers", "pytest_plugins = ['tests.support.planted']",
    "lock._keys.base", "pool._available_connections", "asyncio._get_running_loop()", "getattr(loop, '_scheduled', [])",
    "monkeypatch.setattr(pool, '_checked', 1)", "monkeypatch.setattr('aiolocks._engine.context.IDLE', 1)",
    "importlib.import_module('aiolocks._engine.context')",
    "class Proxy(FaultProxy):\n    def orders(self):\n        return self._faults.orders",
    "PROGRAM = 'from aiolocks._core.keys import Keys\\nprint(Keys)'",
    "PROGRAM = 'import aiolocks; print(aiolocks.Lock._x)'",
])  # fmt: skip
def test_a_private_name_is_found(source: str) -> None:
    assert private_names(source)


@one_by_one("source", [
    "from __future__ import annotations", "from aiolocks import Lock as _Lock",
    "from aiolocks._core.kinds import KINDS", "os._exit(0)", "lock.__class__",
    "class Mine:\n    def __init__(self):\n        self._x = 1\n    def x(self):\n        return self._x",
    "f'{script}'.replace('/', '_')", "'lock_grant'",
])  # fmt: skip
def test_a_public_name_and_one_of_its_own_are_no_private_name(source: str) -> None:
    assert private_names(source) == []


def test_the_inside_is_small_and_each_of_its_names_is_used_and_says_what_it_is() -> None:
    tree = ast.parse(INSIDE.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    public = [node for node in tree.body if isinstance(node, kinds) and not private(node.name)]
    assert len(public) <= 28, "what needs another one may be a test of the inside: those are in `tests/unit`"
    assert [node.name for node in public if not ast.get_docstring(node)] == []
    used = {word for text in texts().values() for word in re.findall(r"\w+", text)}
    functions = [node for node in public if isinstance(node, ast.FunctionDef)]
    returned = {word for node in functions if node.returns for word in re.findall(r"\w+", ast.unparse(node.returns))}
    assert {node.name for node in public} - used - returned == set()
