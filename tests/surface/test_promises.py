"""Each promise has its row of tests in `.docs/guarantees.md`, and each fault has tests that name it."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.cases import one_by_one

REPOSITORY = Path(__file__).parents[2]
GUARANTEES = REPOSITORY / ".docs" / "guarantees.md"
LIMITS = [*(f"L{number}" for number in range(1, 10)), "L10a", "L10b", "L10c", "L11"]
PROMISES = [f"P{number}" for number in range(1, 15)]

FAULTS = {
    "F1": "the reply to the first acquire is lost", "F2": "an acquire is late, and its caller cancelled meanwhile",
    "F3": "cancellation at every await, by the task and by a scope",
    "F4": "everything is swallowed for three TTLs, then healed", "F5": "the server is stopped (SIGSTOP)",
    "F6": "the server is killed, and restarted empty or with all its data",
    "F7": "the holder is stopped for two TTLs",
    "F8": "the holder is killed; waiters are killed, stopped, forked and then killed",
    "F9": "the event loop is blocked", "F10": "DEBUG SLEEP, CLIENT PAUSE WRITE, late answers",
    "F11": "CLIENT KILL every 50 ms", "F12": "SCRIPT FLUSH in a loop",
    "F13": "failover without replicas that have what was granted",
    "F14": "the primary behind Sentinels is killed, stopped or replaced",
    "F15": "nodes of a Cluster are killed, stopped or replaced; slots are moved",
    "F16": "the server's wall clock is stepped by a minute", "F17": "out of memory; eviction",
    "F18": "too few replicas to write", "F19": "workers on a few names under a random mix of all that",
    "F20": "a simulation under a virtual clock", "F21": "fork while holding",
}  # fmt: skip
"""What the tests break on purpose."""


def rows(table: str) -> dict[str, list[str]]:
    """Return the cells of each row with a link, by the first of them."""
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines() if "](" in line]
    return {row[0]: row[1:] for row in cells}


def proofs() -> dict[str, list[str]]:
    return rows(GUARANTEES.read_text(encoding="utf-8").split("<!-- proofs -->")[1].split("<!-- /proofs -->")[0])


def section(heading: str) -> dict[str, list[str]]:
    """Return the rows of the first table below a heading of the page."""
    text = GUARANTEES.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    return rows(text.partition("\n#")[0])


@cache
def docstrings() -> list[str]:
    """Return the docstring of every test, with the name of its function."""
    found = []
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tests = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        found += [ast.get_docstring(tree) or "", *(ast.get_docstring(test) or "" for test in tests)]
    return found


@one_by_one("promise", PROMISES)
def test_the_tests_that_prove_a_promise_exist(promise: str) -> None:
    assert list(proofs()) == PROMISES
    named = re.findall(r"\]\(([^)]+)\)", proofs()[promise][0])
    assert named
    assert [path for path in named if not (GUARANTEES.parent / path).is_file()] == []


@one_by_one(
    "heading, numbers", [("What aiolocks guarantees", PROMISES), ("What no lock on Redis can guarantee", LIMITS)]
)
def test_each_guarantee_and_each_limit_is_one_sentence_with_one_proof(heading: str, numbers: list[str]) -> None:
    found = section(heading)
    assert list(found) == numbers
    for number, (says, *_, proof) in found.items():
        assert says.endswith("."), number
        assert ". " not in says, number
        assert len(re.findall(r"\]\(\.\./tests/[^)]+\.py\)", proof)) == 1, number


@pytest.mark.rest
@one_by_one("fault", FAULTS)
def test_every_fault_is_named_by_a_test(fault: str) -> None:
    assert any(re.search(rf"\b{fault}\b", text) for text in docstrings()), FAULTS[fault]


def test_the_nightly_command_is_the_one_there_is() -> None:
    block = (
        (REPOSITORY / "tests" / "README.md")
        .read_text(encoding="utf-8")
        .split("<!-- nightly-command -->")[1]
        .split("<!-- /nightly-command -->")[0]
    )
    assert block.split("```")[1].removeprefix("sh\n").strip() == ".venv/bin/python -m tests.nightly"
    assert (REPOSITORY / "tests" / "nightly.py").is_file()
