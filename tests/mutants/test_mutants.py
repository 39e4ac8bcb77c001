"""What is mutated, and how; and that a mutant is caught by a test that notices it and by no other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import of_lua, of_python
from tests.mutants.mutant import Mutant, equivalents, names
from tests.mutants.reached import FOLDER, Reached, ranges, senders
from tests.mutants.table import REPOSITORY, files
from tests.mutants.trial import Trial, mutants_of

PYTHON = '''
"""Not this: 1 < 2."""
from typing import Literal

def of(a: Literal[3], b: int = 7) -> bool:
    """Nor this."""
    # é: the tree counts bytes
    if not a or len("é") is None:
        self.x = min(a, 0.5)
        note(a)
    return a <= b + 1
'''

LUA = """
-- not this: 1 == 2
local life = math.min(tonumber(ARGV[1]), 50) - 1
if not there and life > 0 then
  redis.call('DEL', KEYS[1])
end
"""


def changes(found: list[Mutant], text: str) -> list[str]:
    return [mutant.described(text).partition(": ")[2] for mutant in found]


def test_python_is_mutated_by_its_tree_and_stays_python() -> None:
    found = of_python.mutants("a.py", PYTHON)
    for mutant in found:
        compile(mutant.apply(PYTHON), "a.py", "exec")
    assert {mutant.kind for mutant in found} == {
        "and/or", "branches swapped", "comparison", "constant", "line dropped", "min/max", "not dropped", "sign",
    }  # fmt: skip
    told = changes(found, PYTHON)
    assert 'if not a or len("é") is None:  ->  if not a or len("é") is not None:' in told
    assert "note(a)  ->  pass" in told
    assert "return a <= b + 1  ->  return a < b + 1" in told
    assert not any("Literal" in change and "[4]" in change for change in told)


def test_lua_is_mutated_by_its_words() -> None:
    told = changes(of_lua.mutants("a.lua", LUA), LUA)
    assert "if not there and life > 0 then  ->  if not there or life > 0 then" in told
    assert "if not there and life > 0 then  ->  if not (not there and life > 0) then" in told
    assert "redis.call('DEL', KEYS[1])  ->" in [change.rstrip() for change in told]
    life = "local life = math.min(tonumber(ARGV[1]), 50) - 1"
    assert f"{life}  ->  {life.replace('min', 'max')}" in told
    assert not any("not this" in change for change in told)


def test_a_line_is_looked_for_where_a_call_runs_it() -> None:
    """A default is evaluated once, when the module is imported: it answers to the tests of its function."""
    assert ranges(PYTHON, 10, range(10, 11)) == (range(10, 11), range(6, 12))
    assert ranges(PYTHON, 5, range(5, 6)) == (range(6, 12),)
    assert ranges(PYTHON, 3, range(3, 4)) == ()


def test_a_lua_file_answers_to_the_tests_of_all_scripts_it_is_in() -> None:
    lua = "aiolocks/_redis/lua"
    assert senders(f"{lua}/session/introduce.lua") == {"session/introduce"}
    assert {"semaphore/renew", "modes/renew"} <= senders(f"{lua}/semaphore/renew.lua")
    assert {"lock/grant", "exact/grant"} <= senders(f"{lua}/libraries/mutex.lua")


@pytest.mark.rest
def test_what_a_test_reaches_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "reached-quick"
    folder.mkdir()
    test = "tests/unit/core/test_keys.py"
    command = ["-m", "pytest", "-qq", "-p", "tests.mutants.reached", "-p", "no:cacheprovider", test]
    subprocess.run([sys.executable, *command], cwd=REPOSITORY, env={**os.environ, FOLDER: str(folder)}, check=True)
    (folder / "commit").write_text("HEAD")
    reached = Reached("quick", tmp_path)
    found = [reached.tests(mutant) for mutant in mutants_of("aiolocks/_core/keys.py")]
    assert any(found)
    assert all(name.startswith(test) for tests in found for name in tests)
    assert reached.tests(mutants_of("aiolocks/_engine/renewal.py")[0]) == []


@pytest.mark.rest
def test_each_comment_of_an_equivalent_means_a_mutant_of_its_line() -> None:
    for path in files():
        text = (REPOSITORY / path).read_text(encoding="utf-8")
        made = mutants_of(path)
        for line, said in equivalents(text).items():
            meant = [names(mutant, made, text) for mutant in made if mutant.line(text) == line]
            assert said <= set().union(*meant), f"{path}:{line}"


@pytest.mark.rest
def test_a_mutant_is_caught_by_a_test_that_notices_it(tmp_path: Path) -> None:
    text = "def least(a, b):\n    return min(a, b)\n"
    (tmp_path / "some.py").write_text(text)
    (tmp_path / "conftest.py").write_text(f"import sys; sys.path[:0] = ['.', {str(REPOSITORY)!r}]")
    (tmp_path / "test_blind.py").write_text("import some\ndef test_it(): assert some.least(1, 1) == 1")
    (tmp_path / "test_seeing.py").write_text("import some\ndef test_it(): assert some.least(1, 2) == 1")
    (tmp_path / "test_broken.py").write_text("def test_it(): assert False")
    (tmp_path / "test_unready.py").write_text("import none_of_this")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = . {REPOSITORY}")
    (mutant,) = (mutant for mutant in of_python.mutants("some.py", text) if mutant.kind == "min/max")
    trial = Trial(tmp_path, workers=0)
    blind, seeing = "test_blind.py::test_it", "test_seeing.py::test_it"
    assert not trial.fails([blind, seeing])
    assert not trial.one_of(["test_broken.py::test_it", blind], mutant)
    assert trial.one_of([blind, seeing], mutant) == seeing
    with pytest.raises(AssertionError, match="without a mutant neither"):
        trial.one_of(["test_unready.py::test_it"], mutant)
    assert (tmp_path / "some.py").read_text() == text
