"""Many waiters of several processes on one name: runs them, and measures how fast and how fairly they are served."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench import event_loops, turns
from bench.counters import Counters, Counts
from bench.figures import Parameters, Run
from bench.peers import PEERS
from bench.processes import REPOSITORY, environment
from bench.scenario import Server
from bench.turns import NEVER, Acquisition

_UNTIL_BEGIN = 0.25
"""Seconds from when the last process is ready until all begin: shorter than any library keeps idle connections."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What all tasks recorded, and what the server counted between two instants."""

    met: Sequence[Acquisition]
    errors: Counter[str]
    """Of tasks that ended early, by type."""
    since: int
    until: int
    before: Counts
    after: Counts
    connections: int
    client_cpu: float
    """Seconds of all processes, from the beginning to the end, and so for all that is in *met*."""

    def of(self, chosen: Callable[[Acquisition], bool]) -> "Observed":
        """Return the same with only the acquisitions for which *chosen* is true."""
        return replace(self, met=[one for one in self.met if chosen(one)])

    def grants(self) -> list[Acquisition]:
        """Return what was granted between the two instants."""
        return [one for one in self.met if self.since <= one.granted < self.until]

    def waits_ms(self) -> dict[str, float]:
        """Return the waits of requests made between the two instants, as figures; none if there was no grant."""
        waits = sorted(
            (one.granted - one.asked) / 1e6
            for one in self.met
            if self.since <= one.asked < self.until and one.granted != NEVER
        )
        if not waits:
            return {}
        return {
            "wait_p50_ms": turns.percentile(waits, 0.5),
            "wait_p99_ms": turns.percentile(waits, 0.99),
            "wait_max_ms": waits[-1],
        }


async def contend(library: str, parameters: Parameters, server: Server) -> Run:
    """Run the processes of waiters and return their figures.

    Args:
        library: The library that is measured.
        parameters: `processes`, `waiters` in each, `limit` (0: a lock), `seconds`, `warm_up` (seconds too); `style`
            (`block`: by `async with`; left out: by hand); and `names`, how many locks there are (left out: one).
        server: Where.
    """
    limit = int(parameters["limit"]) or int(parameters.get("names", 1))
    return run_of(await observe(library, parameters, server), limit, by_fence=bool(parameters["limit"]))


async def observe(library: str, parameters: Parameters, server: Server) -> Observed:
    """Run the processes of waiters and return what was recorded.

    Args:
        library: The library that is measured.
        parameters: Those of `contend`; `hold`, seconds for which each holds (0: it only yields); and `writers`, how
            many tasks of each process, its first ones, write where the others read (left out: no read-write lock).
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
        met, errors, cpu = await _collect(processes)
    return Observed(met, errors, since, until, before, after, connections, cpu)


def run_of(
    seen: Observed, limit: int = 1, weight: Callable[[Acquisition], int] = lambda _: 1, *, by_fence: bool = False
) -> Run:
    """Return the figures of all that was recorded; the arguments are those of `turns.overlaps` and `overtaking`."""
    grants, before, after = seen.grants(), seen.before, seen.after
    figures = {
        "overlaps": float(turns.overlaps(seen.met, limit, weight)),
        "connections": float(seen.connections),
        "handoffs_per_s": 1e9 * len(grants) / (seen.until - seen.since),
    }
    if grants:
        overtaking = turns.overtaking(seen.met, by_fence=by_fence)
        same, all_grants = turns.repeated(seen.met)
        figures |= {
            "overtaking_percent": 100 * sum(one in overtaking for one in grants) / len(grants),
            "overtaking_within": float(turns.overtaking_within(seen.met, by_fence=by_fence)),
            "same_task_percent": 100 * same / all_grants,
            "reads_per_handoff": (after.reads - before.reads) / len(grants),
            "commands_per_handoff": (after.commands - before.commands) / len(grants),
            "server_cpu_us": 1e6 * (after.cpu - before.cpu) / len(grants),
            "client_cpu_us": 1e6 * seen.client_cpu / len(seen.met),
        }
    counted = {f"tasks ended with {error}": count for error, count in seen.errors.items()}
    never = sum(seen.since <= one.asked < seen.until and one.granted == NEVER for one in seen.met)
    if never:
        counted["requests never granted"] = never
    remarks = () if grants else ("there was no grant while it was measured",)
    return Run(figures | seen.waits_ms(), remarks, counted)


async def _start(library: str, parameters: Parameters, server: Server, place: int) -> Process:
    waiters = int(parameters["waiters"])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.waiting",
        stdin=PIPE, stdout=PIPE, cwd=REPOSITORY, env=environment(), limit=2**26,
    )  # fmt: skip
    orders = {
        "library": library,
        "loop": event_loops.running(),
        "url": server.url,
        "number": place,
        "waiters": waiters,
        "limit": parameters["limit"],
        "names": int(parameters.get("names", 0)),
        "writers": parameters.get("writers"),
        "hold": parameters.get("hold", 0),
        "style": parameters.get("style", "pair"),
        "connections": PEERS[library].pool_for(waiters),
        "seconds": float(parameters["warm_up"]) + float(parameters["seconds"]),
    }
    _stdin(process).write(json.dumps(orders).encode() + b"\n")
    return process


async def _expect_ready(process: Process) -> None:
    line = await _stdout(process).readline()
    if line != b"ready\n":
        raise RuntimeError(f"a process of waiters did not get ready: {line!r}")


async def _collect(processes: Sequence[Process]) -> tuple[list[Acquisition], Counter[str], float]:
    met: list[Acquisition] = []
    errors: Counter[str] = Counter()
    cpu = 0.0
    for place, process in enumerate(processes):
        head = json.loads(await _stdout(process).readline())
        met += turns.unpacked(place, await _stdout(process).readexactly(head["size"]))
        errors += Counter(head["errors"])
        cpu += head["cpu"]
        await process.wait()
    return met, errors, cpu


def _stdin(process: Process) -> asyncio.StreamWriter:
    assert process.stdin is not None
    return process.stdin


def _stdout(process: Process) -> asyncio.StreamReader:
    assert process.stdout is not None
    return process.stdout
