"""Many tasks, each on a lock of its own: how many pairs the connections carry, and how many connections there are."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

from bench.counters import Counters
from bench.figures import Case, Parameters, Results, Run, median, ratio, remarks
from bench.loops import LOOPS
from bench.peers import PEERS, POOL
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.scenarios.one_task import FLOOR, FLOOR_BLOCK, OWN, OWN_BLOCK, WAYS, cpu_columns, turn_of
from bench.tables import Bar, Report, at_least, at_most, compared, measured, number, remarked, table


def _row(label: str, tasks: int) -> str:
    return f"{label}, {number(tasks)} tasks"


def _pooled(library: str) -> str:
    return f"{library}, {POOL} connections"


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    chosen = []
    for tasks in scale.tasks:
        sizes: dict[str, str | float] = {"seconds": scale.seconds, "warm_up": scale.warm_up, "tasks": tasks}
        for library in libraries:
            if library == "aiolocks":
                chosen += [Case(_row(label, tasks), library, {**sizes, **how}) for label, how in WAYS.items()]
            elif not PEERS[library].pools:
                chosen.append(Case(_row(library, tasks), library, {**sizes, "style": "pair"}))
                chosen.append(Case(_row(FLOOR_BLOCK, tasks), library, {**sizes, "style": "block"}))
            else:
                pooled = {**sizes, "style": "pair", "connections": POOL}
                chosen.append(Case(_row(_pooled(library), tasks), library, pooled))
                chosen.append(Case(_row(f"{library}, default pool", tasks), library, {**sizes, "style": "pair"}))
    return chosen


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    tasks = int(parameters["tasks"])
    connections = int(parameters["connections"]) if "connections" in parameters else None
    loop = LOOPS[parameters["style"]]
    with Counters(server.admin_url) as counters:
        async with PEERS[library].connect(server.url, connections) as client:
            turns = [turn_of(client, f"bench:{task}", parameters) for task in range(tasks)]

            async def run(seconds: float) -> list[int | BaseException]:
                until = time.perf_counter() + seconds
                return await asyncio.gather(*(loop(turn, until) for turn in turns), return_exceptions=True)

            errors = Counter(
                type(end).__name__ for end in await run(float(parameters["warm_up"])) if not _is_count(end)
            )
            before, cpu, begun = counters.read(), time.process_time(), time.perf_counter()
            ends = await run(float(parameters["seconds"]))
            taken, cpu, after = time.perf_counter() - begun, time.process_time() - cpu, counters.read()
            errors |= Counter(type(end).__name__ for end in ends if not _is_count(end))
            pairs = sum(end for end in ends if isinstance(end, int))
            found = counters.connections()
    failed = {f"of {number(tasks)} tasks failed: {error}": count for error, count in errors.items()}
    figures = {"errors": float(errors.total()), "connections": float(found), "took_s": taken}
    if pairs:
        figures |= {
            "pairs_per_s": pairs / taken,
            "client_cpu_us": 1e6 * cpu / pairs,
            "server_cpu_us": 1e6 * (after.cpu - before.cpu) / pairs,
        }
    return Run(figures, counted=failed)


def _is_count(end: int | BaseException) -> bool:
    return isinstance(end, int)


def report(results: Results, scale: Scale) -> Report:
    tables = []
    for tasks in scale.tasks:
        base = _row(_pooled("redis-py"), tasks)
        columns = [
            measured("pairs/s", "pairs_per_s"),
            compared(f"× redis-py, {POOL} connections", "pairs_per_s", lambda _, base=base: base, results),  # type: ignore[misc]
            measured("took s", "took_s", 1),  # longer than planned where locks were left behind and had to lapse
            measured("connections", "connections"),
            *cpu_columns(results, _row(FLOOR, tasks)),
            remarked(),
        ]
        tables.append(table("library", columns, results, [row for row in results if row.endswith(_row("", tasks))]))
    return Report(tables, _bars(results, max(scale.tasks)))


def _bars(results: Results, tasks: int) -> list[Bar]:
    base = _row(_pooled("redis-py"), tasks)
    by_hand, by_block = _row(OWN, tasks), _row(OWN_BLOCK, tasks)
    own = [*results.get(by_hand, ()), *results.get(by_block, ())]
    connections = [most for row in (by_hand, by_block) if (most := median(results, row, "connections")) is not None]
    met = f"{number(tasks)} tasks, own locks, one default client: "
    return [
        at_least(
            f"{met}at least 6 × redis-py's Lock on {POOL} connections by acquire/release",
            ratio(results, by_hand, base, "pairs_per_s"),
            6,
        ),
        at_least(
            f"{met}at least 5 × redis-py's Lock on {POOL} connections by async with",
            ratio(results, by_block, base, "pairs_per_s"),
            5,
        ),
        Bar(f"{met}no error", "; ".join(remarks(own)) or "none", None if not own else not remarks(own)),
        at_most(f"{met}at most 4 connections", max(connections, default=None), 4, "{:.0f}"),
    ]


SCENARIO = Scenario(
    "own-locks", "Many tasks, each on its own lock", cases, measure, report, [("pairs_per_s", "pairs/s")]
)
