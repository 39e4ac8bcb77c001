"""Only what failed while the machine stood still gets a second try, and the summary names it."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

TESTS = """
import os, time

tries = []

def stand_still():
    with open(os.environ["AIOLOCKS_STALLS"], "a") as file:
        file.write(f"{time.monotonic()} 1.5\\n")

def test_that_fails_once_in_such_a_moment():
    tries.append("it")
    if len(tries) == 1:
        stand_still()
        raise AssertionError

def test_that_always_fails_then():
    stand_still()
    raise AssertionError

def test_that_fails():
    tries.append("other")
    assert tries.count("other") > 1
"""


def test_only_what_failed_while_the_machine_stood_still_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from tests.support import stalls; stalls.STOLEN = 2.0")  # never as much
    seen = tmp_path / "seen"  # by no watcher: this machine may stand still in fact
    seen.touch()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "AIOLOCKS_STALLS": str(seen)}
    plugins = ("no:xdist", "no:asyncio", "no:cacheprovider", "tests.support.stalls")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *(word for name in plugins for word in ("-p", name)), "-c", os.devnull, "."],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    summary = done.stdout.partition("tried again, as the machine stood still")[2]
    assert "test_that_fails_once_in_such_a_moment: for 1.5 s" in summary
    assert "test_that_always_fails_then: for 1.5 s" in summary
    assert "test_that_fails:" not in summary
