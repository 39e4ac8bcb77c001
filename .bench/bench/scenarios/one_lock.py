"""P processes with W waiters each, all on one lock: how fast it is handed on, how long and how fairly waiters wait."""

from collections.abc import Sequence

from bench.contention import contend
from bench.figures import Case, Results, greatest, median, ratio, remarks
from bench.scale import Scale
from bench.scenario import Scenario
from bench.tables import Bar, Column, Report, at_least, at_most, below, compared, measured, remarked, table

OWN, FAIR_PEER = "aiolocks", "redis-fifo-lock"


def sizes(scale: Scale, limit: int) -> dict[str, float]:
    """Return the parameters of `contend`."""
    return {
        "processes": scale.processes,
        "waiters": scale.waiters,
        "limit": limit,
        "seconds": scale.seconds,
        "warm_up": scale.warm_up,
    }


def columns(results: Results, base: str) -> list[Column]:
    """Return the columns that a contended lock and a contended semaphore have in common."""
    return [
        measured("hand-offs/s", "handoffs_per_s"),
        compared(f"× {base}", "handoffs_per_s", lambda _: base, results),
        measured("wait p50 ms", "wait_p50_ms"),
        measured("p99 ms", "wait_p99_ms"),
        measured("max ms", "wait_max_ms"),
        measured("overtook > 5 ms %", "overtaking_percent", 2),
        measured("overtook in its process", "overtaking_within"),
        measured("same task again %", "same_task_percent", 1),
        measured("overlaps", "overlaps"),
        *costs(),
    ]


def costs() -> list[Column]:
    """Return the columns that say what a hand-off cost the server."""
    return [
        measured("server reads", "reads_per_handoff", 2),
        measured("commands", "commands_per_handoff", 1),
        measured("server CPU µs", "server_cpu_us", 1),
        measured("connections", "connections"),
        remarked(),
    ]


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    return [Case(library, library, sizes(scale, 0)) for library in libraries]


def report(results: Results, scale: Scale) -> Report:
    def own(figure: str) -> float | None:
        return median(results, OWN, figure)

    overlapping, disorder = greatest(results, OWN, "overlaps"), greatest(results, OWN, "overtaking_within")
    p50, p99 = own("wait_p50_ms"), own("wait_p99_ms")
    setting = f"{scale.processes} processes × {scale.waiters} waiters on one lock: "
    bars = [
        at_most(f"{setting}0 overlaps (worst run)", overlapping, 0, "{:.0f}"),
        at_most(f"{setting}within a process exactly in order of asking", disorder, 0, "{:.0f}"),
        below(f"{setting}under 1 % overtake a request older by over 5 ms", own("overtaking_percent"), 1, "{:.2f} %"),
        at_most(f"{setting}p99 of the wait ≤ 1.8 × its median", p99 and p50 and p99 / p50, 1.8, "{:.2f} ×"),
        below(
            f"{setting}p99 of the wait under half of {FAIR_PEER}'s",
            ratio(results, OWN, FAIR_PEER, "wait_p99_ms"), 0.5, "{:.2f} ×",
        ),
        at_most(f"{setting}at most 2.0 server reads per hand-off", own("reads_per_handoff"), 2.0),
        at_least(
            f"{setting}at least 3.5 × {FAIR_PEER}'s hand-offs/s", ratio(results, OWN, FAIR_PEER, "handoffs_per_s"), 3.5
        ),
        Bar(f"{setting}no error", "; ".join(remarks(results.get(OWN, ()))) or "none", _clean(results)),
    ]  # fmt: skip
    return Report([table("library", columns(results, FAIR_PEER), results)], bars, [_HOW])


def _clean(results: Results) -> bool | None:
    return None if not results.get(OWN) else not remarks(results[OWN])


_HOW = (
    "Each task asks, yields once (`asyncio.sleep(0)`) while it holds, releases and asks again. Waits are those of all "
    "requests made while it was measured, also if they were served later. Libraries that do not queue mostly grant the "
    "lock again to the task that just released it: their hand-offs/s are then not hand-offs (see `same task again`)."
)

PANELS = [
    ("handoffs_per_s", "hand-offs/s"),
    ("wait_p99_ms", "p99 of the wait, ms"),
    ("overtaking_percent", "overtook, %"),
]

SCENARIO = Scenario("one-lock", "Many waiters of several processes on one lock", cases, contend, report, PANELS)
