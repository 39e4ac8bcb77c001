"""Many waiters of several processes on one name: runs them, and measures how fast and how fairly they are served."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Sequence

from tests.bench import turns
from tests.bench.counters import Counters, Counts
from tests.bench.figures import Parameters, Run
from tests.bench.peers import PEERS
from tests.bench.processes import REPOSITORY, environment
from tests.bench.scenario import Server
from tests.bench.turns import NEVER, Acquisition

_UNTIL_BEGIN = 0.25
"""Seconds from the last process's being ready until all begin: less than any library closes idle connections after."""


async def contend(library: str, parameters: Parameters, server: Server) -> Run:
    """Run the processes of waiters and return what they met with.

    Args:
        library: Who is measured.
        parameters: `processes`, `waiters` in each, `limit` (0: a lock), `seconds`, `warm_up` (seconds too).
        server: Where.
    """
    with Counters(server.admin_url) as counters:
        processes = [await _start(library, parameters, server, place) for place in range(int(parameters["processes"]))]
        for process in processes:
            await _expect_ready(process)
        begin = time.monotonic_ns() + round(1e9 * _UNTIL_BEGIN)
        for process in processes:
            _stdin(process).write(b"%d\n" % begin)
        await asyncio.sleep(_UNTIL_BEGIN + float(parameters["warm_up"]))
        connections = counters.connections()
        before, since = counters.read(), time.monotonic_ns()
        await asyncio.sleep(float(parameters["seconds"]))
        after, until = counters.read(), time.monotonic_ns()
        met, errors = await _collect(processes)
    return _run(met, errors, since, until, before, after, connections, int(parameters["limit"]) or 1)


async def _start(library: str, parameters: Parameters, server: Server, place: int) -> Process:
    waiters = int(parameters["waiters"])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.waiting",
        stdin=PIPE, stdout=PIPE, cwd=REPOSITORY, env=environment(), limit=2**26,
    )  # fmt: skip
    orders = {
        "library": library,
        "url": server.url,
        "number": place,
        "waiters": waiters,
        "limit": parameters["limit"],
        "connections": PEERS[library].pool_for(waiters),
        "seconds": float(parameters["warm_up"]) + float(parameters["seconds"]),
    }
    _stdin(process).write(json.dumps(orders).encode() + b"\n")
    return process


async def _expect_ready(process: Process) -> None:
    line = await _stdout(process).readline()
    if line != b"ready\n":
        raise RuntimeError(f"a process of waiters did not get ready: {line!r}")


async def _collect(processes: Sequence[Process]) -> tuple[list[Acquisition], Counter[str]]:
    met: list[Acquisition] = []
    errors: Counter[str] = Counter()
    for place, process in enumerate(processes):
        head = json.loads(await _stdout(process).readline())
        met += turns.unpacked(place, await _stdout(process).readexactly(head["size"]))
        errors += Counter(head["errors"])
        await process.wait()
    return met, errors


def _run(
    met: Sequence[Acquisition],
    errors: Counter[str],
    since: int,
    until: int,
    before: Counts,
    after: Counts,
    connections: int,
    limit: int,
) -> Run:
    grants = [one for one in met if since <= one.granted < until]
    waits = sorted(
        (one.granted - one.asked) / 1e6 for one in met if since <= one.asked < until and one.granted != NEVER
    )
    figures = {
        "overlaps": float(turns.overlaps(met, limit)),
        "connections": float(connections),
        "handoffs_per_s": 1e9 * len(grants) / (until - since),
    }
    if grants:
        overtaking = turns.overtaking(met, by_fence=limit > 1)
        same, all_grants = turns.repeated(met)
        figures |= {
            "overtaking_percent": 100 * sum(one in overtaking for one in grants) / len(grants),
            "overtaking_within": float(turns.overtaking_within(met, by_fence=limit > 1)),
            "same_task_percent": 100 * same / all_grants,
            "reads_per_handoff": (after.reads - before.reads) / len(grants),
            "commands_per_handoff": (after.commands - before.commands) / len(grants),
            "server_cpu_us": 1e6 * (after.cpu - before.cpu) / len(grants),
        }
    if waits:
        figures |= {
            "wait_p50_ms": turns.percentile(waits, 0.5),
            "wait_p99_ms": turns.percentile(waits, 0.99),
            "wait_max_ms": waits[-1],
        }
    counted = {f"tasks ended with {error}": count for error, count in errors.items()}
    never = sum(since <= one.asked < until and one.granted == NEVER for one in met)
    if never:
        counted["requests never granted"] = never
    return Run(figures, counted=counted)


def _stdin(process: Process) -> asyncio.StreamWriter:
    assert process.stdin is not None
    return process.stdin


def _stdout(process: Process) -> asyncio.StreamReader:
    assert process.stdout is not None
    return process.stdout
