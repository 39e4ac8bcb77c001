"""The parts of the suite, by `--part`: what each change is tested with, what CI adds, what needs quiet, the nights."""

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from .virtual import in_virtual_time, parameters_of

QUICK, REST, FAULTS, LONG = PARTS = ("quick", "rest", "faults", "long")

WITHOUT = {
    QUICK: ("tests/faults", "tests/fleets"),
    REST: ("tests/faults",),
    FAULTS: ("tests/mutants", "tests/primitives", "tests/scripts", "tests/simulation", "tests/unit"),
}
"""For each part the folders that have none of its tests: to import and collect them costs each worker a second."""

_TURNS = ("url", "backend", "sharded", "exclusive")
"""Parameters of promises that are kept on every server, on a Cluster's channels, and by the scripts of each kind."""

GRANTORS = (("lock",), ("redlock",), ("multilock",), ("semaphore of 3", "semaphore"))
"""For each grantor the rows that stand for it, the best one first: the others have the same grantors."""

_BUSY = ("tests/simulation/", "tests/fleets/", "tests/tools/bench/")
"""Where tests are that keep a core busy, for a minute some of them; nearly all others wait."""

_BUSY_WORKERS = 2
"""How many of pytest-xdist's workers begin with these: more would be in each other's way."""


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=PARTS,
        help="only these tests: `quick`, those of a few seconds at most, and if a promise is kept on several servers "
        "or by several kinds, one for each, in turns; `faults`, which break servers, connections and processes, and "
        "whose bounds need a machine that does little else; `long`, for nights; `rest`, all others. If left out: all.",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out paths whose tests are all of other parts."""
    folders = WITHOUT.get(config.getoption("--part"), ())
    return any(collection_path.is_relative_to(config.rootpath / folder) for folder in folders) or None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--part")
    if part is None:
        return
    others = stood_for(items)
    left, out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (left if _part_of(item, others) == part else out).append(item)
    if out:
        config.hook.pytest_deselected(items=out)
    items[:] = busy_ones_first(left, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def busy_ones_first(items: Sequence[Any], workers: int) -> list[Any]:
    """Return all in an order in which no worker is left with a long one at the end.

    Each worker begins with as many that follow each other, and then takes from those that others have not come to.
    """
    busy = [item for item in items if item.nodeid.startswith(_BUSY)]
    others = [item for item in items if not item.nodeid.startswith(_BUSY)]
    ordered: list[Any] = []
    step = min(_BUSY_WORKERS, workers)
    for worker in range(workers):
        share = (len(items) - len(ordered)) // (workers - worker)
        first = busy[worker::step] if worker < step else []
        rest = max(share - len(first), 0)
        ordered += first + others[:rest]
        del others[:rest]
    return ordered


def _part_of(item: pytest.Item, others: set[str]) -> str:
    if item.get_closest_marker("long"):
        return LONG
    if item.get_closest_marker("faults"):
        return FAULTS
    if item.get_closest_marker("slow") or item.nodeid in others:
        return REST
    return REST if item.get_closest_marker("rest") and not item.get_closest_marker("smoke") else QUICK


def stood_for(items: Sequence[pytest.Item]) -> set[str]:
    """Return the ids of the tests that another one stands for in the quick part."""
    tests = [item for item in items if not item.get_closest_marker("core")]
    turns = defaultdict[str, Iterator[int]](count)  # of each file, as a part may be collected without other files
    groups = [
        _but_for_one_turn(next(turns[group[0].nodeid.partition("::")[0]]), group) for group in _alike(tests, _TURNS)
    ]
    groups += map(_but_for_grantors, _alike(tests, ("row",)))
    return {test.nodeid for group in groups for test in group}


def _alike(tests: Iterable[pytest.Item], names: Collection[str]) -> Iterable[list[pytest.Item]]:
    """Return groups of those tests that have any of the parameters *names* and differ in no other."""
    groups = defaultdict[tuple[str, str], list[pytest.Item]](list)
    for test in tests:
        parameters = parameters_of(test)
        if not parameters.keys().isdisjoint(names):
            others = repr([str(value) for name, value in parameters.items() if name not in names])
            groups[test.nodeid.partition("[")[0], others].append(test)
    return groups.values()


def _but_for_one_turn(turn: int, group: list[pytest.Item]) -> list[pytest.Item]:
    """Return all but one, in turns; where some run in virtual time, all but these, which cost the least."""
    virtual = [test for test in group if in_virtual_time(test)] or [group[turn % len(group)]]
    return [test for test in group if test not in virtual]


def _but_for_grantors(group: list[pytest.Item]) -> list[pytest.Item]:
    of_rows = {str(parameters_of(test)["row"]): test for test in group}
    first = [next((of_rows[name] for name in names if name in of_rows), None) for names in GRANTORS]
    return [test for test in group if test not in first] if any(first) else []
