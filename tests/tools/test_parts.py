"""The order of a part's tests: none is lost, and no worker is left with a long one at the end."""

from dataclasses import dataclass

import pytest

from tests.support.parts import busy_ones_first


@dataclass(frozen=True)
class Named:
    nodeid: str


@pytest.mark.parametrize(("busy", "others"), [(0, 0), (10, 90), (3, 4), (5, 0), (18, 2), (0, 7)])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_all_are_run_and_those_that_keep_a_core_busy_first(busy: int, others: int, workers: int) -> None:
    tests = [Named(f"tests/simulation/{number}") for number in range(busy)]
    tests += [Named(f"tests/unit/{number}") for number in range(others)]
    ordered = busy_ones_first(tests, workers)
    assert sorted(ordered, key=lambda test: test.nodeid) == sorted(tests, key=lambda test: test.nodeid)
    if others > 4 * busy:
        share = len(tests) // workers
        begins = [ordered[worker * share].nodeid.startswith("tests/simulation/") for worker in range(workers)]
        assert begins == [worker < 2 and bool(busy) for worker in range(workers)]
