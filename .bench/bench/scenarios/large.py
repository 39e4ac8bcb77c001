"""Hand-offs among thousands of waiters: what each costs, beside what it costs among a hundred."""

from collections.abc import Sequence

from bench.contention import contend
from bench.figures import Case, Parameters, Results, ratio, remarks
from bench.scale import Scale
from bench.scenario import Scenario
from bench.scenarios.one_lock import OWN, sizes
from bench.tables import Bar, Report, at_most, compared, measured, number, remarked, table

_MOST = 1.3
"""Times the cost among a hundred, at most."""


def _pairs(scale: Scale) -> list[tuple[tuple[str, Parameters], tuple[str, Parameters]]]:
    """Return the rows to compare, with their parameters: a hundred waiters, and many in as many processes."""
    parts, names, hundred = scale.large_processes, scale.large_names, scale.waiters
    usual, few, many = sizes(scale, 0), max(hundred // parts, 1), scale.crowd // 2 // parts
    return [
        (
            (f"{parts} × {few} waiters, one lock", {**usual, "processes": parts, "waiters": few}),
            (f"{parts} × {many} waiters, one lock", {**usual, "processes": parts, "waiters": many}),
        ),
        (
            (f"{hundred} tasks, one lock", {**usual, "processes": 1, "waiters": hundred}),
            (f"{number(scale.crowd)} tasks, {names} locks", {
                **usual, "processes": 1, "waiters": scale.crowd, "names": names,
            }),
        ),
    ]  # fmt: skip


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    return [Case(row, OWN, how) for pair in _pairs(scale) for row, how in pair if OWN in libraries]


def report(results: Results, scale: Scale) -> Report:
    few_of = {many: few for (few, _), (many, _) in _pairs(scale)}

    def few(row: str) -> str:
        return few_of.get(row, row)

    columns = [
        measured("hand-offs/s", "handoffs_per_s"),
        measured("wait p50 ms", "wait_p50_ms"),
        measured("p99 ms", "wait_p99_ms"),
        measured("overlaps", "overlaps"),
        measured("server CPU µs", "server_cpu_us", 1),
        compared("× few", "server_cpu_us", few, results),
        measured("client CPU µs", "client_cpu_us", 1),
        compared("× few", "client_cpu_us", few, results),
        remarked(),
    ]
    bars = []
    for row, base in few_of.items():
        for side in ("server", "client"):
            found = ratio(results, row, base, f"{side}_cpu_us")
            bars.append(at_most(f"{row}: the {side}'s CPU at most {_MOST} × that of {base}", found, _MOST))
        told = remarks(results.get(row, ()))
        bars.append(Bar(f"{row}: no error", "; ".join(told) or "none", not told if results.get(row) else None))
    return Report([table("waiters", columns, results)], bars)


_PANELS = [("server_cpu_us", "server CPU, µs per hand-off"), ("client_cpu_us", "client CPU, µs per hand-off")]

SCENARIO = Scenario("large", "Thousands of waiters", cases, contend, report, _PANELS)
