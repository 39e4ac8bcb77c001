"""One task that holds a name on most of several servers, all of which answer or one of which hangs (SIGSTOP)."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from bench.figures import Case, Parameters, Results, Run, median, ratio, remarks
from bench.peers import PEERS, Turn
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import Bar, Report, at_least, at_most, compared, measured, remarked, table
from bench.turns import percentile
from tests.support.servers import RedisServer

OWN, _PEER = "aiolocks Redlock", "pottery AIORedlock"
_STATES = {"": "all up", ", one hung": "one of them hung"}


def _row(label: str, servers: int, state: str) -> str:
    return f"{label}, {servers} servers{state}"


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    times = {"seconds": scale.seconds, "warm_up": scale.warm_up, "patience": scale.quorum_patience}
    return [
        Case(
            _row(f"{library} {way}", servers, state),
            library,
            {**times, "way": way, "servers": servers, "hung": int(state != "")},
        )
        for servers in scale.servers
        for state in _STATES
        for library in libraries
        for way in PEERS[library].quorums
    ]


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    patience = float(parameters["patience"])
    with ExitStack() as stack:
        others = [stack.enter_context(RedisServer()) for _ in range(int(parameters["servers"]) - 1)]
        urls = [*(other.tcp_url for other in others), server.url]
        async with PEERS[library].connect_quorum(urls, str(parameters["way"])) as lock:
            await acquire_until(lock, time.perf_counter() + float(parameters["warm_up"]), patience)
            if parameters["hung"]:
                others[0].pause()
            try:
                cpu, begun = time.process_time(), time.perf_counter()
                met = await acquire_until(lock, begun + float(parameters["seconds"]), patience)
                taken, cpu = time.perf_counter() - begun, time.process_time() - cpu
            finally:
                if parameters["hung"]:
                    others[0].resume()  # or connections could not be closed
    return _run(met, taken, cpu)


@dataclass(slots=True)
class Met:
    """What one task recorded: a time for each attempt, including attempts that failed or were given up."""

    acquire_ms: list[float] = field(default_factory=list)
    release_ms: list[float] = field(default_factory=list)
    acquired: int = 0
    pairs: int = 0
    trouble: Counter[str] = field(default_factory=Counter)


async def acquire_until(lock: Callable[[str], Turn], until: float, patience: float) -> Met:
    """Acquire and release until `time.perf_counter()` says *until*, at least once."""
    clock, met = time.perf_counter, Met()
    turn = None
    while True:
        if turn is None:  # a new name after each failure, which may have left the last one held
            turn = lock(f"bench:{until}:{len(met.acquire_ms)}")
        asked = clock()
        trouble, held = await _attempt(turn.acquire, patience)
        granted = clock()
        met.acquire_ms.append(1000 * (granted - asked))
        if trouble or not held:
            met.trouble[f"acquisitions {trouble or 'refused'}"] += 1
            turn = None
        else:
            met.acquired += 1
            release = turn.release
            trouble, _ = await _attempt(lambda release=release, held=held: release(held), patience)  # type: ignore[misc]
            met.release_ms.append(1000 * (clock() - granted))
            met.pairs += not trouble
            if trouble:
                met.trouble[f"releases {trouble}"] += 1
                turn = None
        if clock() >= until:
            return met


async def _attempt(act: Callable[[], Awaitable[Any]], patience: float) -> tuple[str, Any]:
    """Return what went wrong, if anything, and what it returned."""
    bound = asyncio.timeout(patience)
    try:
        async with bound:
            return "", await act()
    except Exception as error:
        return (f"given up after {patience:g} s" if bound.expired() else f"failed: {type(error).__name__}"), None


def _run(met: Met, taken: float, cpu: float) -> Run:
    attempts = len(met.acquire_ms)
    acquire = sorted(met.acquire_ms)
    figures = {
        "acquire_p50_ms": percentile(acquire, 0.5),
        "acquire_p99_ms": percentile(acquire, 0.99),
        "acquire_max_ms": acquire[-1],
        "acquisitions": float(attempts),
        "success_percent": 100 * met.acquired / attempts,
        "pairs_per_s": met.pairs / taken,
        "client_cpu_us": 1e6 * cpu / attempts,
    }
    if met.release_ms:
        figures["release_p50_ms"] = percentile(sorted(met.release_ms), 0.5)
    return Run(figures, counted={f"of {attempts} {what}": count for what, count in met.trouble.items()})


def report(results: Results, scale: Scale) -> Report:
    tables = []
    for servers in scale.servers:
        for state, title in _STATES.items():
            base, ending = _row(_PEER, servers, state), _row("", servers, state)
            rows = {row.removesuffix(ending): runs for row, runs in results.items() if row.endswith(ending)}
            columns = [
                measured("acquired after ms, p50", "acquire_p50_ms", 2),
                measured("p99", "acquire_p99_ms", 2),
                measured("max", "acquire_max_ms", 1),
                measured("of attempts", "acquisitions"),
                measured("successful %", "success_percent", 1),
                measured("released after ms, p50", "release_p50_ms", 2),
                measured("pairs/s", "pairs_per_s", 1),
                compared(f"× {_PEER}", "pairs_per_s", lambda _, base=base: base, results),  # type: ignore[misc]
                measured("client CPU µs", "client_cpu_us", 1),
                remarked(),
            ]
            tables.append(table(f"{servers} servers, {title}", columns, rows))
    bars = [bar for servers in scale.servers for bar in _bars(results, servers)]
    return Report(tables, bars, [_HOW.format(scale.quorum_patience)])


def _bars(results: Results, servers: int) -> list[Bar]:
    up, hung = (_row(OWN, servers, state) for state in _STATES)
    runs = [*results.get(up, ()), *results.get(hung, ())]
    shares = [run.figures["success_percent"] for run in runs if "success_percent" in run.figures]
    setting = f"{servers} servers: "
    return [
        at_least(
            f"{setting}pairs/s at least those of {_PEER}, all up",
            ratio(results, up, _row(_PEER, servers, ""), "pairs_per_s"), 1.0,
        ),
        at_least(f"{setting}every attempt succeeds, one hung or none", min(shares, default=None), 100, "{:.2f} %"),
        at_most(
            f"{setting}median time to acquire with one hung ≤ 1.5 × with all up",
            ratio(results, hung, up, "acquire_p50_ms"), 1.5, "{:.2f} ×",
        ),
        at_most(
            f"{setting}p99 of it with one hung under 50 ms",
            median(results, hung, "acquire_p99_ms"), 50, "{:.2f} ms",
        ),
        Bar(f"{setting}no error", "; ".join(remarks(runs)) or "none", not remarks(runs) if runs else None),
    ]  # fmt: skip


_HOW = (
    "The bench starts the servers, and stops one after the warm-up, when all clients are connected. An attempt is "
    "given up after {:g} s, and the next one has another name, since a failed one may have left its own held. Times "
    "of attempts include failed ones. Clients have redis-py's defaults, under which a silent server counts as gone "
    "after 5 s, unless a row names another setting."
)

_PANELS = [("acquire_p50_ms", "acquired after ms, median"), ("pairs_per_s", "pairs/s")]

SCENARIO = Scenario("quorum", "A name held on most of several servers", cases, measure, report, _PANELS)
