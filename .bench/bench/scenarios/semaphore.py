"""The same crowd on a semaphore: at most ten at once."""

from collections.abc import Sequence

from bench.contention import contend
from bench.figures import Case, Results, greatest, median
from bench.peers import PEERS
from bench.scale import Scale
from bench.scenario import Scenario
from bench.scenarios.one_lock import OWN, PANELS, columns, sizes
from bench.tables import Report, at_most, below, table

_LIMIT = 10
_PEER = "py-redis-semaphore"
_OWN_BLOCK = "aiolocks async with"


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    chosen = [
        Case(library, library, sizes(scale, _LIMIT), "" if PEERS[library].semaphore else "has no semaphore")
        for library in libraries
    ]
    if OWN in libraries:
        chosen.insert(libraries.index(OWN) + 1, Case(_OWN_BLOCK, OWN, {**sizes(scale, _LIMIT), "style": "block"}))
    return chosen


def report(results: Results, scale: Scale) -> Report:
    setting = f"{scale.processes} processes × {scale.waiters} waiters, semaphore of {_LIMIT}: "
    bars = [
        at_most(f"{setting}never more than {_LIMIT} at once", greatest(results, OWN, "overlaps"), 0, "{:.0f} times"),
        at_most(
            f"{setting}within a process exactly in order of asking",
            greatest(results, OWN, "overtaking_within"), 0, "{:.0f} not",
        ),
        below(
            f"{setting}under 1 % overtake a request older by over 5 ms",
            median(results, OWN, "overtaking_percent"), 1, "{:.2f} %",
        ),
        at_most(f"{setting}at most 2.0 server reads per hand-off", median(results, OWN, "reads_per_handoff"), 2.0),
    ]  # fmt: skip
    return Report([table("library", columns(results, _PEER), results)], bars, [_HOW])


_HOW = (
    "Several grants may be on their way to their holders at once. So overtaking is judged by the fencing tokens, which "
    "show the order of the server's grants. Without fencing tokens it is judged by when the holders knew."
)

_TITLE = f"Many waiters of several processes on a semaphore of {_LIMIT}"

SCENARIO = Scenario("semaphore", _TITLE, cases, contend, report, PANELS)
