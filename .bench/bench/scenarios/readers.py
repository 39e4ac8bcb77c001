"""Many tasks of several processes that mostly read: what a read-write lock gains over a lock, and what it costs."""

from collections.abc import Sequence
from dataclasses import replace

from bench.contention import Observed, observe, run_of
from bench.figures import Case, Parameters, Results, Run, greatest, median, ratio, remarks
from bench.peers import PEERS
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.scenarios import one_lock, one_task
from bench.tables import Bar, Report, at_least, at_most, compared, measured, remarked, table
from bench.turns import Acquisition

HOLD = 0.001
"""Seconds for which each lease is held."""

_ALONE = ", one task"
_LOCK = "aiolocks Lock"
_COMPARED = ("redis-py", "redis-fifo-lock")


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    times: dict[str, str | float] = {"seconds": scale.seconds, "warm_up": scale.warm_up}
    crowd = {**times, "processes": scale.processes, "waiters": scale.waiters, "limit": 0, "hold": HOLD}
    alone = {**times, "style": "pair"}
    chosen: list[Case] = []
    for library in libraries:
        if PEERS[library].reads:
            chosen += [
                Case(_row(percent), library, {**crowd, "writers": round(percent * scale.waiters / 100)})
                for percent in scale.write_percent
            ]
            chosen.append(Case(_LOCK, library, crowd))
        elif library in _COMPARED:
            chosen.append(Case(library, library, crowd))
    for library in libraries:
        if PEERS[library].reads:
            chosen += [
                Case(_alone(mode), library, {**alone, "mode": mode}) for mode in ("read", "upgradeable", "write")
            ]
            chosen.append(Case(f"{_LOCK}{_ALONE}", library, alone))
        elif library in _COMPARED:
            chosen.append(Case(f"{library}{_ALONE}", library, alone))
    return chosen


def _row(percent: int) -> str:
    return f"aiolocks RWLock, {percent} % write" if percent else "aiolocks RWLock, all read"


def _alone(mode: str) -> str:
    return f"aiolocks {mode}{_ALONE}"


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    if "style" in parameters:
        return await one_task.measure(library, parameters, server)
    waiters = int(parameters["waiters"])
    writers = int(parameters.get("writers", waiters))  # holders of a plain lock exclude all others
    tasks = int(parameters["processes"]) * waiters

    def weight(one: Acquisition) -> int:
        return tasks if one.task < writers else 1

    seen = await observe(library, parameters, server)
    run = run_of(seen, tasks, weight, by_fence=True)
    sides = {"reading": seen.of(lambda one: one.task >= writers), "writing": seen.of(lambda one: one.task < writers)}
    figures = {f"{side}_{name}": value for side, part in sides.items() for name, value in _side(part).items()}
    return replace(run, figures=run.figures | figures | {"held_at_once": _held_at_once(seen)})


def _side(part: Observed) -> dict[str, float]:
    if not part.met:
        return {}
    return {"per_s": 1e9 * len(part.grants()) / (part.until - part.since), **part.waits_ms()}


def _held_at_once(seen: Observed) -> float:
    """Return the mean number of leases held at once."""
    held = (min(one.released, seen.until) - max(one.granted, seen.since) for one in seen.met)
    return sum(time for time in held if time > 0) / (seen.until - seen.since)


def report(results: Results, scale: Scale) -> Report:
    crowd = [
        measured("leases/s", "handoffs_per_s"),
        compared(f"× {_LOCK}", "handoffs_per_s", lambda _: _LOCK, results),
        measured("held at once", "held_at_once", 1),
        measured("readers' wait p50 ms", "reading_wait_p50_ms", 1),
        measured("p99 ms", "reading_wait_p99_ms", 1),
        measured("writes/s", "writing_per_s"),
        measured("writers' wait p50 ms", "writing_wait_p50_ms", 1),
        measured("p99 ms", "writing_wait_p99_ms", 1),
        measured("overlaps", "overlaps"),
        measured("overtook > 5 ms %", "overtaking_percent", 2),
        measured("overtook in its process", "overtaking_within"),
        *one_lock.costs(),
    ]
    alone = [
        measured("pairs/s", "pairs_per_s"),
        compared(f"× {_LOCK}", "pairs_per_s", lambda _: f"{_LOCK}{_ALONE}", results),
        measured("µs/pair", "us_per_pair", 1),
        measured("client CPU µs", "client_cpu_us", 1),
        measured("server CPU µs", "server_cpu_us", 1),
        measured("commands", "commands_per_pair", 1),
        remarked(),
    ]
    one = [row for row in results if row.endswith(_ALONE)]
    return Report(
        [
            table("held for 1 ms", crowd, results, [row for row in results if row not in one]),
            table("nobody else", alone, results, one),
        ],
        _bars(results, scale),
        [_HOW],
    )


def _bars(results: Results, scale: Scale) -> list[Bar]:
    setting = f"{scale.processes} processes × {scale.waiters} tasks, 1 ms each: "
    shared = [row for percent in scale.write_percent if results.get(row := _row(percent))]
    overlaps = [most for row in shared if (most := greatest(results, row, "overlaps")) is not None]
    disorder = [most for row in shared if (most := greatest(results, row, "overtaking_within")) is not None]
    told = remarks([run for row in shared for run in results[row]])
    plain = ratio(results, _alone("read"), f"{_LOCK}{_ALONE}", "pairs_per_s")
    readers, writers = (median(results, _row(2), f"{side}_wait_p99_ms") for side in ("reading", "writing"))
    return [
        at_most(f"{setting}no writer beside another holder (worst run)", max(overlaps, default=None), 0, "{:.0f}"),
        at_least(f"{setting}readers alone 5 × Lock", ratio(results, _row(0), _LOCK, "handoffs_per_s"), 5),
        at_least(f"{setting}with 2 % writers 2 × Lock", ratio(results, _row(2), _LOCK, "handoffs_per_s"), 2),
        at_most(
            f"{setting}neither side starves: p99 of the writers' wait ≤ 2 × the readers', of 2 % that write",
            writers and readers and writers / readers, 2, "{:.2f} ×",
        ),
        at_most(f"{setting}within a process exactly in order of asking", max(disorder, default=None), 0, "{:.0f} not"),
        Bar(f"{setting}no error", "; ".join(told) or "none", not told if shared else None),
        at_least("one task: a read lease at 0.8 × the pairs/s of Lock", plain, 0.8),
    ]  # fmt: skip


_HOW = (
    "Each task asks, holds for a millisecond (`asyncio.sleep(0.001)`), releases and asks again. Where some write, it "
    "is always the same tasks. An overlap is a writer beside another holder. Overtaking is judged by the fencing "
    "tokens, if there are any. Where all read, every request is granted on arrival: requests can only overtake on "
    "their way to the server, and the same share of the other rows says nothing about the queue. The other libraries "
    "have no read-write lock, so that their readers exclude each other."
)

_PANELS = [
    ("handoffs_per_s", "leases/s, held for 1 ms"),
    ("reading_wait_p99_ms", "p99 of the readers' wait, ms"),
    ("writing_wait_p99_ms", "p99 of the writers' wait, ms"),
    ("pairs_per_s", "pairs/s"),
]

SCENARIO = Scenario("readers", "Many readers and few writers", cases, measure, report, _PANELS)
