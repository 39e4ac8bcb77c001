"""How long the slowest script keeps the server from all others, with thousands of holders and waiters."""

from collections.abc import Sequence
from typing import cast

from redis import Redis

from bench.crowded import Situation, situations
from bench.figures import Case, Parameters, Results, Run, median
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import NOTHING, Bar, Report, measured, remarked, table
from tests.scripts.calls import Scripts

OWN = "aiolocks"
_BOUND_MS = 20.0
_SIZE = 5_000
_VERBS = ("grant", "only ask", "renew", "release", "leave", "re-check", "statistics", "resize", "shrink")
_SERVER = {"slowlog-log-slower-than": "0", "slowlog-max-len": "1000"}


def _most_waiters() -> int:
    """Return how many waiters one re-check asks about. Imported late, as an older checkout does not have that name."""
    from aiolocks._grantors.wait_queue import _MAX_WAITERS

    return _MAX_WAITERS


def _row(situation: Situation) -> str:
    return f"{situation.kind}: {situation.called}"


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    size = min(_SIZE, scale.crowd)
    return [
        Case(_row(situation), OWN, {"situation": _row(situation), "size": size})
        for situation in situations(_most_waiters())
        if OWN in libraries
    ]


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    """Run every script once in the situation, and read the slow log. Before, a small situation compiles the scripts."""
    [situation] = [each for each in situations(_most_waiters()) if _row(each) == parameters["situation"]]
    times: dict[str, float] = {}
    with Redis.from_url(server.admin_url) as redis:
        for size in (10, int(parameters["size"])):
            for verb, act in situation.acts.items():
                redis.flushall()
                scripts = Scripts(redis, situation.kind)  # type: ignore[arg-type]
                situation.prepare(scripts, size)
                redis.slowlog_reset()
                act(scripts, size)
                for _ in range(3):  # to continue, if there is more
                    scripts.recheck()
                log = cast("list[dict[str, int]]", redis.slowlog_get(1_000))
                times[verb] = max(record["duration"] for record in log) / 1_000
    return Run({"slowest_ms": max(times.values()), **{f"{verb}_ms": took for verb, took in times.items()}})


def report(results: Results, scale: Scale) -> Report:
    worst = [median(results, row, "slowest_ms") or 0.0 for row in results]
    bar = f"no script keeps the server for longer than {_BOUND_MS:g} ms"
    met = Bar(bar, f"{max(worst):.1f} ms", max(worst) < _BOUND_MS) if worst else Bar(bar, NOTHING, None)
    columns = [measured(verb, f"{verb}_ms", 2) for verb in _VERBS]
    return Report(
        [table("situation, ms", [measured("slowest", "slowest_ms", 2), *columns, remarked()], results)], [met]
    )


SCENARIO = Scenario(
    "slowest", f"The slowest script, with {_SIZE:,} holders and {_SIZE:,} waiters", cases, measure, report,
    server_options=_SERVER,
)  # fmt: skip
