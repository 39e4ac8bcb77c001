"""ARCHITECTURE.md is true: its pointers lead somewhere, it names each file, and each rule is cited where it is kept."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

import aiolocks
from aiolocks._core.events import Kind
from aiolocks._engine.lease_state import MOVES, End
from tests.support.cases import one_by_one

PACKAGE = Path(aiolocks.__file__).parent
REPOSITORY = PACKAGE.parent
TEXT = (PACKAGE / "ARCHITECTURE.md").read_text(encoding="utf-8")
LUA = PACKAGE / "_redis" / "lua"
RULES = [*(f"W{number}" for number in range(1, 29)), *(f"I{number}" for number in range(1, 5))]
POINTERS = sorted(set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL))))
DOTTED = [one for one in POINTERS if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", one) and not one.endswith(".py")]
SCRIPTS = [one for one in POINTERS if one.startswith("lua/")]
PATHS = [one for one in POINTERS if "/" in one and not one.startswith(("lua/", "memory:"))]
ROWS = {
    row[0].split()[0]: row for row in (line.strip("| ").split(" | ") for line in TEXT.splitlines()) if len(row) == 4
}


@cache
def modules() -> dict[str, list[ast.Module]]:
    """Return the syntax of all modules of the library, by the stem of their files."""
    found = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        found[file.stem].append(ast.parse(file.read_text(encoding="utf-8")))
    return found


def bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the names that the statements of a module or class define."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.If):
            yield from bound((*node.body, *node.orelse))


def classes(trees: Iterable[ast.Module]) -> list[ast.ClassDef]:
    return [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]


@cache
def classes_by_name() -> dict[str, list[ast.ClassDef]]:
    found = defaultdict(list)
    for trees in modules().values():
        for node in classes(trees):
            found[node.name].append(node)
    return found


def members(node: ast.ClassDef) -> set[str]:
    """Return what a class and its bases define, and the attributes that their methods set."""
    found = set(bound(node.body))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and isinstance(inner.value, ast.Name):
            found |= {inner.attr} if inner.value.id == "self" else set()
    for base in node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        for parent in classes_by_name().get(name.id, []) if isinstance(name, ast.Name) else []:
            found |= members(parent)
    return found


def resolves(pointer: str) -> bool:
    """Whether there is such a `module.Class.member`, `module.name` or `Class.member`."""
    first, *rest = pointer.split(".")
    if len(rest) == 1 and any(rest[0] in bound(tree.body) for tree in modules().get(first, [])):
        return True
    own = classes_by_name().get(first, [])
    if len(rest) == 2:
        own, rest = [node for node in classes(modules().get(first, [])) if node.name == rest[0]], rest[1:]
    return len(rest) == 1 and any(rest[0] in members(node) for node in own)


def is_script(pointer: str) -> bool:
    """Whether there is such a `lua/folder/`, `lua/folder/file` with stars perhaps, or `lua/folder/file.function`."""
    path, _, function = pointer.removeprefix("lua/").removesuffix(".lua").partition(".")
    folder, _, verb = path.partition("/")
    files = [file for file in LUA.glob("*/*.lua") if fnmatch(file.parent.name, folder or "*")]
    files = [file for file in files if fnmatch(file.stem, verb or "*")]
    declared = re.compile(rf"^(local )?(function )?{function}\b", re.MULTILINE)
    return any(not function or declared.search(file.read_text(encoding="utf-8")) for file in files)


def is_path(pointer: str) -> bool:
    """Whether there is such a file or folder: below the package, the repository, or `tests/` without its suffix."""
    return any((root / pointer).exists() for root in (PACKAGE, REPOSITORY, REPOSITORY / "tests")) or (
        (REPOSITORY / "tests" / pointer).with_suffix(".py").exists()
    )


def test_no_pointer_is_broken_by_the_end_of_a_line() -> None:
    assert not [line for line in TEXT.splitlines() if line.count("`") % 2 and not line.startswith("```")]


@one_by_one("pointer", [*DOTTED, *SCRIPTS, *PATHS])
def test_a_pointer_leads_somewhere(pointer: str) -> None:
    assert is_script(pointer) if pointer in SCRIPTS else is_path(pointer) if pointer in PATHS else resolves(pointer)


@one_by_one("name", [one for one in POINTERS if re.fullmatch(r"[A-Z][a-z]+[A-Z]?\w*|_[A-Z]\w*", one)])
def test_a_class_that_is_named_exists(name: str) -> None:
    assert name in classes_by_name()


@pytest.mark.parametrize("pointer", ["Request.no_such", "request.Request.no_such", "request.no_such", "NoSuch.turn"])
def test_a_pointer_that_leads_nowhere_is_found(pointer: str) -> None:
    assert not resolves(pointer)
    assert not is_path(f"unit/engine/{pointer}")
    assert not is_script("lua/*/no_such")
    assert not is_script("lua/libraries/queue.no_such")


def test_pointers_of_all_forms_are_found() -> None:
    assert resolves("Request.turn")
    assert resolves("request.Request.extensions")
    assert resolves("request.Granted")
    assert resolves("SlotRoute.ask"), "which a base has"
    assert is_script("lua/libraries/queue.subscribers")
    assert {"timing.deadline", "Validity.held"} <= {*DOTTED}
    assert {"lua/*/grant", "lua/libraries/"} <= {*SCRIPTS}
    assert "unit/engine/test_request" in PATHS


@one_by_one("rule", RULES)
def test_each_rule_is_in_the_table_with_a_pointer_and_a_check(rule: str) -> None:
    _, says, kept, checked = ROWS[rule]
    assert says.endswith(".")
    assert "`" in kept
    assert (paths := re.findall(r"`([^`]+)`", checked))
    assert all(is_path(path) and path in PATHS for path in paths)


def test_the_table_has_no_other_rule() -> None:
    assert [rule for rule in ROWS if re.fullmatch(r"[A-Z]\d+", rule)] == RULES


@one_by_one("layer", ["_primitives", "_grantors", "_engine", "_redis", "_core"])
def test_each_file_of_a_layer_has_its_place_in_the_tables(layer: str) -> None:
    table = TEXT.partition(f"| `{layer}/` |")[2].partition("\n\n")[0]
    named = {
        name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.removeprefix("| ").split(" | ")[0])
    }
    assert named - {"lua/"} == {file.stem for file in (PACKAGE / layer).glob("*.py")} - {"__init__"}


def first_cells(head: str) -> set[str]:
    """Return the words in the first column of the table that begins with the cell *head*."""
    rows = TEXT.partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    return {word for row in rows for word in re.findall(r"\w+", row.split(" | ")[0])}


def test_the_tables_of_events_and_libraries_are_complete() -> None:
    assert first_cells("event") == {*get_args(Kind)}
    assert first_cells("library") == {file.stem for file in (LUA / "libraries").glob("*.lua")}


def test_the_ends_of_a_lease_are_those_of_the_table() -> None:
    picture = TEXT.partition("## States")[2].partition("```")[2].partition("```")[0]
    assert set(re.findall(r"\b[A-Z_]{4,}\b", picture)) == {end.name for end in MOVES[None]}
    assert not any(MOVES[end] for end in End), "an end is final"


def cited(source: str, comment: str) -> set[str]:
    """Return the rules that the comments of a file cite; markers of planted defects are no citations."""
    comments = [re.sub(r"defect: \S+", "", line.partition(comment)[2]) for line in source.splitlines()]
    return {rule for text in comments for rule in re.findall(r"\b[WI]\d+\b", text)}


def cited_in_docstrings(tree: ast.Module) -> set[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
    return {rule for text in texts for rule in re.findall(r"\b[WI]\d+\b", text)}


@cache
def all_cited() -> set[str]:
    found = set[str]()
    for file in PACKAGE.rglob("*.py"):
        found |= cited(file.read_text(encoding="utf-8"), "#")
    for file in LUA.rglob("*.lua"):
        found |= cited(file.read_text(encoding="utf-8"), "--")
    return found.union(*(cited_in_docstrings(tree) for trees in modules().values() for tree in trees))


@one_by_one("rule", RULES)
def test_each_rule_is_cited_at_a_line_that_keeps_it(rule: str) -> None:
    assert rule in all_cited()


def test_no_rule_is_cited_that_the_table_lacks() -> None:
    assert {rule for rule in all_cited() if re.fullmatch(r"[WI]\d+", rule)} <= {*RULES}


def test_a_marker_of_a_defect_is_no_citation() -> None:
    assert cited("x = 1  # defect: W5-stale\ny = 2  # W8: why", "#") == {"W8"}
