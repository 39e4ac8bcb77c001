"""The parts of the suite, by `--part`: what each change is tested with, what CI adds, what needs quiet, the nights."""

import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, TypeVar

import pytest


class Named(Protocol):
    """A test, as far as its order is concerned."""

    @property
    def nodeid(self) -> str: ...


T = TypeVar("T", bound=Named)

QUICK, REST, FAULTS, LONG = PARTS = ("quick", "rest", "faults", "long")

_SERVERS = "url"
"""The parameter of promises that are kept on every server that the scripts run on."""

_BUSY = "tests/simulation/"
"""Where tests are that keep a core busy, for a minute some of them; nearly all others wait."""

_BUSY_WORKERS = 2
"""How many of pytest-xdist's workers begin with these: more would be in each other's way."""


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=PARTS,
        help="only these tests: `quick`, those of a few seconds at most, and of a promise that is kept on several "
        "servers one at a time, in turns; `rest`, what this leaves out, but for the other two; `faults`, which break "
        "servers, connections and processes, and whose bounds need a machine that does little else; `long`, what "
        "nights are for. All: left out.",
    )


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave those of the chosen part in *items*."""
    part = config.getoption("--part")
    if part is None:
        return
    turns = _others_turns(items)
    left, out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (left if _part_of(item, turns) == part else out).append(item)
    if out:
        config.hook.pytest_deselected(items=out)
    items[:] = busy_ones_first(left, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def busy_ones_first(items: Sequence[T], workers: int) -> list[T]:
    """Return all in an order in which no worker is left with a long one at the end.

    Each worker begins with as many that follow each other, and then takes from those that others have not come to.
    """
    busy = [item for item in items if item.nodeid.startswith(_BUSY)]
    others = [item for item in items if not item.nodeid.startswith(_BUSY)]
    ordered = list[T]()
    step = min(_BUSY_WORKERS, workers)
    for worker in range(workers):
        share = (len(items) - len(ordered)) // (workers - worker)
        first = busy[worker::step] if worker < step else []
        rest = max(share - len(first), 0)
        ordered += first + others[:rest]
        del others[:rest]
    return ordered


def _part_of(item: pytest.Item, turns: set[str]) -> str:
    if item.get_closest_marker("long"):
        return LONG
    if item.get_closest_marker("faults"):
        return FAULTS
    return REST if item.get_closest_marker("slow") or item.nodeid in turns else QUICK


def _others_turns(items: Sequence[pytest.Item]) -> set[str]:
    """Return the ids of those that another server takes the turn of: each server has as many tests as the next."""
    alike = defaultdict[tuple[str, str], list[pytest.Item]](list)
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if isinstance(item, pytest.Function) and _SERVERS in parameters:
            others = repr([str(value) for name, value in parameters.items() if name != _SERVERS])
            alike[item.nodeid.partition("[")[0], others].append(item)
    return {
        item.nodeid
        for turn, group in enumerate(alike.values())
        for at, item in enumerate(group)
        if at != turn % len(group)
    }
