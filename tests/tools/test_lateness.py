"""Only a failure of lateness is tried again: once, and three times in a run at most. Its first text is kept."""

import ast
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from aiolocks.testing import JumpingLoop
from tests.support.lateness import TooLateError, in_time
from tests.support.workers import environment

pytestmark = pytest.mark.rest

REPOSITORY = Path(__file__).parents[2]

LATE_ONCE = """
from tests.support.lateness import assert_within

tried = set()

def late_once(name):
    if name not in tried:
        tried.add(name)
        assert_within(2.5, 1.0, "the waiter was woken")
"""

LOSS = """
def test_a_second_holder_got_in_while_the_machine_stood_still(tries=[]):
    tries.append(1)
    holders = ["ada", "ben"] if len(tries) == 1 else ["ada"]
    assert len(holders) == 1, "C1: two holders of 'orders'"
"""


def run(
    folder: Path, text: str, plugin: str = "tests.support.lateness"
) -> tuple[subprocess.CompletedProcess[str], ElementTree.Element]:
    """Run *text* as a file of tests, with this repository's own settings; return what came of it and JUnit's file."""
    (folder / "test_some.py").write_text(text)
    settings = ["-c", str(REPOSITORY / "pyproject.toml"), f"--rootdir={folder}", "-p", plugin]
    words = [*settings, "-p", "no:xdist", "-p", "no:cacheprovider", "--junitxml=junit.xml", "test_some.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=folder, env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done, ElementTree.parse(folder / "junit.xml").getroot()


@pytest.mark.smoke
def test_a_late_test_is_tried_once_more_three_in_a_run_and_its_first_failure_kept_but_a_loss_of_exclusion_is_final(
    tmp_path: Path,
) -> None:
    late_twice = "\ndef test_late_twice(): assert_within(2.0, 1.0)\n"
    late_once = "".join(f"\ndef test_{number}(): late_once({number})\n" for number in range(3))
    done, junit = run(tmp_path, LOSS + LATE_ONCE + late_twice + late_once)
    assert "3 failed, 2 passed, 3 rerun" in done.stdout, done.stdout + done.stderr
    for name in ("test_a_second_holder", "test_late_twice", "test_2"):
        assert f"FAILED test_some.py::{name}" in done.stdout
    assert "C1: two holders of 'orders'" in done.stdout
    assert "TooLateError: 2.500 s, bound 1.000 s: the waiter was woken" in done.stdout
    kept = [each.get("value") for each in junit.iter("property") if each.get("name") == "too late"]
    assert set(kept) == {"2.500 s, bound 1.000 s: the waiter was woken", "2.000 s, bound 1.000 s"}


@pytest.mark.redis
def test_a_late_test_that_leaves_its_work_is_tried_again(tmp_path: Path) -> None:
    leaves = "async def test_it(redis): work = asyncio.create_task(asyncio.sleep(9)); late_once('it'); work.cancel()"
    done, _ = run(tmp_path, f"import asyncio{LATE_ONCE}\n{leaves}", "tests.conftest")
    assert "1 passed, 1 rerun" in done.stdout, done.stdout + done.stderr


def test_a_block_in_time_is_judged_without_the_lateness_of_its_loop() -> None:
    async def punctual() -> None:
        async with in_time(0.2):
            await asyncio.sleep(0.01)
            time.sleep(0.4)  # the loop stands still

    async def late() -> None:
        async with in_time(0.2, "the waiter was woken"):
            await asyncio.sleep(60)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner, pytest.raises(TooLateError, match=r"60.*waiter was woken"):
        runner.run(late())
    asyncio.run(punctual())


CLOCKS = {"monotonic", "perf_counter", "time"}
"""Functions whose differences are times that have passed."""


def bounds(tree: ast.Module) -> Iterator[tuple[int, ast.expr]]:
    """Yield the line and the bound of each check of how soon something came."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Call(func=ast.Name(id="assert_within"), args=[_, bound, *_])
                | ast.Call(func=ast.Name(id="in_time"), args=[bound, *_])
            ):
                yield node.lineno, bound
            case ast.Assert(
                test=ast.Compare(
                    left=ast.BinOp(left=ast.Call(func=ast.Attribute(attr=clock)), op=ast.Sub()),
                    ops=[ast.Lt() | ast.LtE()],
                )
            ) if clock in CLOCKS:
                yield node.lineno, ast.Constant("an assert, which is never tried again")


def names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_each_bound_on_a_real_clock_has_slack_or_is_net_of_the_loops_lag() -> None:
    without = []
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = [node for node in tree.body if isinstance(node, ast.Assign) and "SLACK" in names(node.value)]
        enough = {"SLACK", "lag"} | {name for node in constants for target in node.targets for name in names(target)}
        found = bounds(tree) if path != Path(__file__) else ()
        without += [f"{path}:{line}: {ast.unparse(bound)}" for line, bound in found if not enough & names(bound)]
    assert without == []
