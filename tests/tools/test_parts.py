"""Which tests stand for others in the quick part; and the order of a part's tests, in which none is lost."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.cases import one_by_one
from tests.support.parts import FAULTS, GRANTORS, QUICK, REST, WITHOUT, busy_ones_first, stood_for
from tests.support.primitives import EVERY_ROW

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Collected:
    nodeid: str
    callspec: Any = None
    marks: set[str] = field(default_factory=set)

    def get_closest_marker(self, name: str) -> bool | None:
        return True if name in self.marks else None


@pytest.mark.parametrize("workers", [1, 2, 8])
@one_by_one("busy, others", [(0, 0), (10, 90), (3, 4), (5, 0), (18, 2), (0, 7)])
def test_all_tests_are_run_and_tests_that_keep_a_core_busy_first(busy: int, others: int, workers: int) -> None:
    tests = [Collected(f"tests/simulation/{number}") for number in range(busy)]
    tests += [Collected(f"tests/unit/{number}") for number in range(others)]
    ordered = busy_ones_first(tests, workers)
    assert sorted(ordered, key=lambda test: test.nodeid) == sorted(tests, key=lambda test: test.nodeid)
    if others > 4 * busy:
        share = len(tests) // workers
        begins = [ordered[worker * share].nodeid.startswith("tests/simulation/") for worker in range(workers)]
        assert begins == [worker < 2 and bool(busy) for worker in range(workers)]


@one_by_one("part, only", [(QUICK, "faults|slow"), (REST, "faults")])
def test_a_folder_that_a_part_leaves_out_has_no_test_of_it(part: str, only: str) -> None:
    marked = rf'^(pytestmark = [^=]*mark\.|    item\.add_marker\(")({only})\b'
    for text in texts_of(part):
        assert re.search(marked, text, re.MULTILINE), text[:200]
    assert not [text[:200] for text in texts_of(FAULTS) if re.search(r'mark(\.|er\(")faults', text)]


def texts_of(part: str) -> list[str]:
    """Return the text of each file of tests, and that of its folder's conftest, which may mark all of them."""
    files = [file for folder in WITHOUT[part] for file in (ROOT / folder).rglob("test_*.py")]
    assert len(files) > 10
    pairs = [(file, file.with_name("conftest.py")) for file in files]
    return ["\n".join(each.read_text("utf-8") for each in pair if each.exists()) for pair in pairs]


def left_of(name: str, *marks: str, **parameters: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the parameters of those tests of a function that are left in the quick part."""
    all_of_them = [dict(zip(parameters, values, strict=True)) for values in product(*parameters.values())]
    tests = [
        Collected(f"test_some.py::{name}[{number}]", SimpleNamespace(params=each), set(marks))
        for number, each in enumerate(all_of_them)
    ]
    others = stood_for(cast("list[pytest.Item]", tests))
    return [test.callspec.params for test in tests if test.nodeid not in others]


def test_one_server_stands_for_the_others_and_in_virtual_time_it_is_the_one_in_memory() -> None:
    assert left_of("a", url=["memory", "redis"]) == [{"url": "memory"}]
    assert len(left_of("a", "real_time", url=["memory", "redis"])) == 1
    assert len(left_of("a", backend=["memory", "server"], exclusive=["lock", "semaphore", "rwlock"])) == 1
    left = left_of("a", backend=["memory", "server"], seconds=[1, 2, 3])
    assert sorted(each["seconds"] for each in left) == [1, 2, 3], "no case stands for another case"
    assert {each["backend"] for each in left} == {"memory", "server"}, "in turns"
    assert len(left_of("a", "core", url=["memory", "redis"], row=EVERY_ROW)) == 2 * len(EVERY_ROW), "the core stays"


def test_one_row_of_each_grantor_stands_for_the_others() -> None:
    assert {name for names in GRANTORS for name in names} <= {str(row) for row in EVERY_ROW}
    left = left_of("a", row=EVERY_ROW)
    assert {str(each["row"]) for each in left} == {names[0] for names in GRANTORS}
    rows = ["read lock", "write lock"]
    assert left_of("a", row=rows) == [{"row": row} for row in rows], "none of them stands for others"
