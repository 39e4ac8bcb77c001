"""A new kind of primitive is complete, or tests are red: a table that has no value for it is an error that names it."""

import ast
import runpy
from pathlib import Path

import pytest

from aiolocks import Lock
from tests.support import kinds, primitives
from tests.support.cases import one_by_one
from tests.support.kinds import KINDS, IncompleteTableError, Kind, complete
from tests.support.primitives import EVERY_ROW, Row, one_of_each_family, rows_where

TESTS = Path(__file__).parents[1]

MADE_UP = Kind("made-up", "Lock", "made-up", "made-up", "lock")

CALLED = {name: kind.name for kind in KINDS for name in (kind.name, kind.class_name)}
CALLED |= {row.id: row.kind.name for row in EVERY_ROW}
"""Every word for a kind that a table may have."""

BY_HAND = {
    "faults/test_odd_answers.py": "questions, each to one kind",
    "fleets/neighbours/worker.py": "a program that older versions run, which have no registry; `_CALLED` checks it",
    "support/parts.py": "for each grantor, one row that stands for it",
    "surface/test_instinct.py": "the names around what a newcomer types",
    "surface/test_ls.py": "names on a server, of which one test compares the kinds with the registry",
    "surface/test_watch.py": "a picture of a few names",
}
"""Files with a literal of many kinds that is no table of kinds, or cannot be made of the registry; and why."""


def is_check(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "complete"


def tables_by_hand(source: str) -> list[int]:
    """Return the lines on which a literal of many kinds begins that the registry does not check."""
    tree = ast.parse(source)
    checked = {inner for node in ast.walk(tree) if is_check(node) for inner in ast.walk(node)}
    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Dict | ast.List | ast.Set | ast.Tuple)]
    return [literal.lineno for literal in literals if len(kinds_in(literal, checked)) > 3]


def kinds_in(literal: ast.AST, checked: set[ast.AST]) -> set[str]:
    """Return the kinds that names and texts in *literal* mean, except those in tables that are checked."""
    inside = set(ast.walk(literal)) - checked
    words = {
        getattr(node, "id", getattr(node, "attr", getattr(node, "value", None)))
        for node in inside
        if isinstance(node, ast.Name | ast.Constant) or getattr(getattr(node, "value", None), "id", "") == "aiolocks"
    }
    return {CALLED[word] for word in words if word in CALLED}


def checks_at_import(tree: ast.AST) -> bool:
    """Whether importing *tree* calls `complete`: what stands in functions runs later, but not their decorators."""
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        return any(map(checks_at_import, tree.decorator_list))
    return is_check(tree) or any(map(checks_at_import, ast.iter_child_nodes(tree)))


CHECKED = [
    path
    for path in sorted(TESTS.rglob("*.py"))
    for text in [path.read_text("utf-8")]
    if "complete(" in text and checks_at_import(ast.parse(text))
]
"""Files with a table that is checked when they are imported."""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry with a kind more, of which no table knows."""
    monkeypatch.setattr(kinds, "KINDS", (*KINDS, MADE_UP))


@pytest.fixture
def table(registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conformance table with a row for that kind."""
    monkeypatch.setitem(primitives._KINDS, MADE_UP.name, MADE_UP)
    row = Row(MADE_UP.name, MADE_UP.name, Lock)
    for name in ("ROWS", "EVERY_ROW"):
        monkeypatch.setattr(primitives, name, (*getattr(primitives, name), row))
    for name in ("WITH_ONE_PLACE", "WITH_A_QUEUE"):
        monkeypatch.setattr(primitives, name, [*getattr(primitives, name), row])


def test_a_kind_without_a_row_in_the_conformance_table_is_an_error_that_names_it(registry: None) -> None:
    with pytest.raises(IncompleteTableError, match="'made-up' is missing"):
        runpy.run_path(primitives.__file__)


@pytest.mark.parametrize("path", CHECKED, ids=lambda path: str(path.relative_to(TESTS)))
def test_a_kind_that_a_checked_table_leaves_out_is_an_error_that_names_it(path: Path, table: None) -> None:
    with pytest.raises(IncompleteTableError, match="'made-up' is missing"):
        runpy.run_path(str(path))


def test_a_new_kind_with_a_row_is_in_every_table_that_is_made_of_rows(table: None) -> None:
    assert MADE_UP.name in rows_where()
    assert MADE_UP.name in rows_where(lambda kind: kind.queued, shared=False)
    assert MADE_UP.name in one_of_each_family()
    assert MADE_UP.name in kinds.kinds_where()
    assert MADE_UP.family in kinds.families()


def test_a_table_says_of_each_row_that_it_leaves_out_why() -> None:
    names = ["lock", "rlock"]
    assert complete({"lock": 1}, names, {"rlock": "the same scripts"}) == {"lock": 1}
    for table, without, says in (
        ({"lock": 1}, {}, "'rlock' is missing"),
        ({"lock": 1}, {"rlock": " "}, "'rlock' is left out without a reason"),
        ({"lock": 1, "rlock": 2, "lokc": 3}, {}, "'lokc' is no kind or row"),
        ({"lock": 1, "rlock": 2}, {"rlock": "the same scripts"}, "'rlock' is left out, and is there"),
        ({"lock": 1, "rlock": 2}, {"redlock": "no queue"}, "'redlock' is left out, but does not belong"),
    ):
        with pytest.raises(IncompleteTableError, match=says):
            complete(table, names, without)
    with pytest.raises(IncompleteTableError, match="'redlock' is left out, but does not belong"):
        rows_where(lambda kind: kind.queued, without={"redlock": "no queue"})


@pytest.mark.rest
@one_by_one("path", sorted(TESTS.rglob("*.py")))
def test_no_table_of_kinds_is_kept_by_hand(path: Path) -> None:
    """Give it to `complete` with the kinds that it is about, or make it of `rows_where`."""
    found = tables_by_hand(path.read_text(encoding="utf-8"))
    name = str(path.relative_to(TESTS))
    assert not found or name in BY_HAND or name == "support/primitives.py", f"{name}, lines {found}"


def test_a_table_of_kinds_that_is_kept_by_hand_is_found() -> None:
    assert tables_by_hand('KINDS = ["lock", "rlock", "semaphore", "write lock"]') == [1]
    assert tables_by_hand("def f():\n    return {'a': Lock, 'b': aiolocks.RLock, 'c': [Semaphore, RWLock.read]}") == [2]
    assert tables_by_hand('KINDS = complete({"lock": 1, "rlock": 2, "semaphore": 3, "write lock": 4}, names)') == []


def test_what_is_excused_from_the_registry_is_still_there() -> None:
    assert len(CHECKED) >= 9
    for name in BY_HAND:
        assert tables_by_hand((TESTS / name).read_text(encoding="utf-8")), name
