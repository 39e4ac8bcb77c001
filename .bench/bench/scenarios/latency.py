"""One task and a server that is far away: how many round trips a block takes.

A proxy delays every byte in both directions. The unit is a PING through it, measured in the same run, in turns with the
rest.
"""

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from bench.delaying import delayed
from bench.figures import Case, Parameters, Results, Run, median
from bench.peers import PEERS, Turn
from bench.peers.pools import client_of
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import Bar, Report, at_most, measured, remarked, table

OWN, PEER = "aiolocks", "redis-py"
NO_OPTION = "this version has no wait_release"

_IN_A_ROW = 5
_PING, _BLOCK, _EARLY, _PEERS_BLOCK = "ping", "block", "early", "redis_py"
_ROWS = {
    _PING: "PING",
    _BLOCK: "aiolocks async with",
    _EARLY: "aiolocks async with, wait_release=False",
    _PEERS_BLOCK: "redis-py async with",
}
"""Name of each row, by the prefix of its figures."""

_BOUNDS = {0.001: 1.3, 0.005: 1.15}
"""Maximum duration, in PINGs, of a block that does not wait for its release, by the round trip. The client's own work
takes no longer if the server is farther away, so the bound is lower there."""

Act = Callable[[], Awaitable[object]]


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    chosen = [library for library in (OWN, PEER) if library in libraries]
    return [
        Case(
            f"{' and '.join(chosen)}, {_distance(round_trip)}",
            chosen[0],
            {"round_trip": round_trip, "seconds": scale.seconds, "libraries": ",".join(chosen)},
        )
        for round_trip in scale.round_trips
        if chosen
    ]


def _distance(round_trip: float) -> str:
    return f"{1000 * round_trip:g} ms"


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(delayed(server.url, float(parameters["round_trip"]) / 2))
        redis = await stack.enter_async_context(client_of(url, None))
        acts: dict[str, Act] = {_PING: redis.ping}
        remarks: tuple[str, ...] = ()
        for name in str(parameters["libraries"]).split(","):
            client = await stack.enter_async_context(PEERS[name].connect(url))
            acts[_PEERS_BLOCK if name == PEER else _BLOCK] = _block(client.lock(f"bench:{name}"))
            if name == OWN:
                try:
                    acts[_EARLY] = _block(client.lock("bench:early", wait_release=False))
                except TypeError:
                    remarks = (NO_OPTION,)
        times = await _in_turns(acts, float(parameters["seconds"]))
    figures = {f"{kind}_ms": 1000 * statistics.median(took) for kind, took in times.items()}
    ping = figures[f"{_PING}_ms"]
    return Run(figures | {f"{kind}_times_ping": figures[f"{kind}_ms"] / ping for kind in times}, remarks)


def _block(turn: Turn) -> Act:
    block = turn.block
    assert block is not None

    async def act() -> None:
        async with block():
            pass

    return act


async def _in_turns(acts: dict[str, Act], seconds: float) -> dict[str, list[float]]:
    """Return the seconds that each call of each act took; each act runs a few times in a row, until the time is up."""
    times: dict[str, list[float]] = {kind: [] for kind in acts}
    clock = time.perf_counter
    for act in acts.values():  # connects
        await act()
    until = clock() + seconds
    while clock() < until:
        for kind, act in acts.items():
            for _ in range(_IN_A_ROW):
                begun = clock()
                await act()
                times[kind].append(clock() - begun)
    return times


def report(results: Results, scale: Scale) -> Report:
    columns = [measured("median ms", "ms", 2), measured("× PING", "times_ping", 2), remarked()]
    lines = {round_trip: _lines(results, round_trip) for round_trip in scale.round_trips}
    return Report(
        [table(f"{_distance(round_trip)} to the server and back", columns, rows) for round_trip, rows in lines.items()],
        [_bar(rows, round_trip) for round_trip, rows in lines.items() if round_trip in _BOUNDS],
        ["All of a table is measured in turns, in one process: a few of each, over and over."],
    )


def _lines(results: Results, round_trip: float) -> Results:
    """Split the one row that all acts share into a row for each act."""
    runs = [run for row, each in results.items() if row.endswith(f", {_distance(round_trip)}") for run in each]
    lines = {title: [_part(run, kind) for run in runs] for kind, title in _ROWS.items()}
    return {title: parts for title, parts in lines.items() if any(part.figures or part.remarks for part in parts)}


def _part(run: Run, kind: str) -> Run:
    figures = {name: run.figures[f"{kind}_{name}"] for name in ("ms", "times_ping") if f"{kind}_{name}" in run.figures}
    concerned = _EARLY if NO_OPTION in run.remarks else _PING  # other remarks concern every act
    return Run(figures, run.remarks if kind == concerned else ())


def _bar(lines: Results, round_trip: float) -> Bar:
    bound = _BOUNDS[round_trip]
    bar = f"{_distance(round_trip)} away: a block with wait_release=False takes at most {bound} × a PING"
    return at_most(bar, median(lines, _ROWS[_EARLY], "times_ping"), bound, "{:.2f} ×")


_PANELS = [(f"{kind}_times_ping", f"{_ROWS[kind]}, × PING") for kind in (_BLOCK, _EARLY, _PEERS_BLOCK)]

SCENARIO = Scenario("latency", "A block, where the server is far away", cases, measure, report, _PANELS)
