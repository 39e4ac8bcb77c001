"""The parts of the suite, by `--part`: what each change is tested with, what CI adds, what needs quiet, the nights."""

from collections import defaultdict
from collections.abc import Sequence

import pytest

QUICK, REST, FAULTS, LONG = PARTS = ("quick", "rest", "faults", "long")

_SERVERS = "url"
"""The parameter of promises that are kept on every server that the scripts run on."""


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
        items[:] = left


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
