"""A new lock for every use, a thousand names at once for the first time, and what names leave after their last use."""

from collections.abc import Sequence
from typing import cast

from bench.counters import Counters
from bench.figures import Case, Parameters, Results, Run, greatest, median, ratio, remarks
from bench.newcomers import PAIRS, alternate, arrive, uses, what_stays
from bench.peers import PEERS, POOL, MakingClient
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import Bar, Report, at_least, at_most, below, compared, measured, number, remarked, table

OWN, PEER = "aiolocks", "redis-py"
_MOST_TASKS = 100
_NEW, _KEPT = "aiolocks, new name for every use", "aiolocks, kept"
_FIRST, _FIRST_BLOCK, _FIRST_PEER = (
    "aiolocks acquire/release, first use", "aiolocks async with, first use", "redis-py, first use",
)  # fmt: skip
_STAYS = "aiolocks, what stays"

_CASES: tuple[tuple[str, str, Parameters], ...] = (
    (_NEW, OWN, {"style": "new", "way": "constructor"}),
    ("aiolocks, new name by LockManager.lock", OWN, {"style": "new", "way": "manager"}),
    ("aiolocks, new lock of the same name", OWN, {"style": "again", "way": "constructor"}),
    (_KEPT, OWN, {"style": "kept", "way": "constructor"}),
    ("redis-py, new name for every use", PEER, {"style": "new", "way": "constructor"}),
    ("redis-py, kept", PEER, {"style": "kept", "way": "constructor"}),
    (_FIRST, OWN, {"first": "pair"}),
    (_FIRST_BLOCK, OWN, {"first": "block"}),
    (_FIRST_PEER, PEER, {"first": "pair"}),
    (_STAYS, OWN, {"way": "constructor"}),
    ("aiolocks, what stays by LockManager.lock", OWN, {"way": "manager"}),
    ("redis-py, what stays", PEER, {"way": "constructor"}),
)


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    sizes: Parameters = {"seconds": scale.seconds, "warm_up": scale.warm_up}
    most = max(scale.tasks)
    chosen = []
    for row, library, how in _CASES:
        if library in libraries:
            # redis-py's takes ten times as long.
            names = scale.names if library == OWN else max(scale.names // 10, 1)
            counts = {"tasks": most if "first" in how else min(most, _MOST_TASKS), "names": names}
            chosen.append(Case(row, library, {**sizes, **counts, **how}))
    return chosen


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    tasks, seconds = int(parameters["tasks"]), float(parameters["seconds"])
    connections = POOL if PEERS[library].pools else None
    with Counters(server.admin_url) as counters:
        async with PEERS[library].connect(server.url, connections) as connected:
            client = cast("MakingClient", connected)
            if "first" in parameters:
                return await arrive(client, str(parameters["first"]), tasks, seconds, counters)
            make = client.maker(str(parameters["way"]))
            if "style" not in parameters:
                return await what_stays(make, tasks, int(parameters["names"]))
            styles = uses(make, tasks)
            use, warm_up = styles[str(parameters["style"])], float(parameters["warm_up"])
            return await alternate(use, styles["kept"], tasks, seconds, warm_up, counters)


def report(results: Results, scale: Scale) -> Report:
    costs = [measured("client CPU µs", "client_cpu_us", 1), measured("server CPU µs", "server_cpu_us", 1)]
    speed = measured("pairs/s", "pairs_per_s")
    uses_columns = [speed, *costs, measured("client CPU × kept", "times_kept", 2), remarked()]
    first = compared("× redis-py", "pairs_per_s", lambda _: _FIRST_PEER, results)
    stays = [
        measured("objects", "objects_each", 3),
        measured("resident bytes", "resident_bytes_each", 1),
        measured("traced bytes", "traced_bytes_each", 1),
        remarked(),
    ]
    most = max(scale.tasks)
    return Report(
        [
            table(f"async with, {number(min(most, _MOST_TASKS))} tasks", uses_columns, results, _rows("style")),
            table(
                f"{number(most)} tasks, {PAIRS} pairs each", [speed, first, *costs, remarked()], results, _rows("first")
            ),
            table("growth per name", stays, results, [row for row, _, how in _CASES if not how.keys() & _STYLES]),
        ],
        [*_use_bars(results), *_first_bars(results, most), *_stay_bars(results, scale.names)],
        [_HOW],
    )


_STYLES = {"style", "first"}


def _rows(kind: str) -> list[str]:
    return [row for row, _, how in _CASES if kind in how]


def _use_bars(results: Results) -> list[Bar]:
    bar = "a new name for every use: client CPU at most 1.15 × that of kept locks (async with)"
    return [at_most(bar, median(results, _NEW, "times_kept"), 1.15, "{:.2f} ×")]


def _first_bars(results: Results, tasks: int) -> list[Bar]:
    own = [*results.get(_FIRST, ()), *results.get(_FIRST_BLOCK, ())]
    names = f"{number(tasks)} new names, {PAIRS} pairs each: "
    peer = f"redis-py's Lock on {POOL} connections"
    by_hand, by_block = (ratio(results, row, _FIRST_PEER, "pairs_per_s") for row in (_FIRST, _FIRST_BLOCK))
    return [
        at_least(f"{names}at least 6 × {peer} by acquire/release", by_hand, 6),
        at_least(f"{names}at least 5 × {peer} by async with", by_block, 5),
        Bar(f"{names}no error", "; ".join(remarks(own)) or "none", None if not own else not remarks(own)),
    ]


def _stay_bars(results: Results, names: int) -> list[Bar]:
    used = f"{number(names)} names used once, nothing collected: "
    return [
        below(f"{used}no object stays (under 0.01 each)", greatest(results, _STAYS, "objects_each"), 0.01, "{:.4f}"),
        below(
            f"{used}the process grows by under 20 bytes each",
            greatest(results, _STAYS, "resident_bytes_each"), 20, "{:.1f}",
        ),
    ]  # fmt: skip


_HOW = (
    "Each style of the first table is measured in turns with kept locks, ten phases of either, in one process and on "
    f"the same connections; redis-py has {POOL}. The ratio of kept locks to kept locks shows how exact such a ratio "
    "is. In the last table the garbage collector is off: objects that only the collector would free count as staying."
)

_PANELS = [
    ("pairs_per_s", "pairs/s"),
    ("client_cpu_us", "client CPU, µs per pair"),
    ("objects_each", "objects that stay, per name"),
]

SCENARIO = Scenario("fresh-names", "Names that were never used before", cases, measure, report, _PANELS)
