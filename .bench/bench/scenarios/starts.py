"""What a start of a rate limiter costs while the limit is not reached: one task, and a hundred of one process."""

import asyncio
import time
from collections.abc import Sequence

from bench.counters import Counters
from bench.figures import Case, Parameters, Results, Run
from bench.limiters import LIMITERS, OWN, Start, installed
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import Report, measured, remarked, table


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    return [
        Case(
            f"{limiter}, {tasks} tasks" if tasks > 1 else f"{limiter}, 1 task", "aiolocks",
            {"limiter": limiter, "tasks": tasks, "seconds": scale.seconds, "warm_up": scale.warm_up},
            "" if installed(limiter) else "is not installed",
        )
        for tasks in (1, 100) for limiter in (LIMITERS if set(libraries) - {"aiolocks"} else [OWN])
    ]  # fmt: skip


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    _, connect = LIMITERS[str(parameters["limiter"])]
    tasks = int(parameters["tasks"])
    with Counters(server.admin_url) as counters:
        async with connect(server.url) as start:
            await _start(start, tasks, float(parameters["warm_up"]))
            before, cpu, begun = counters.read(), time.process_time(), time.perf_counter()
            starts = await _start(start, tasks, float(parameters["seconds"]))
            taken, cpu, after = time.perf_counter() - begun, time.process_time() - cpu, counters.read()
    return Run(
        {
            "starts_per_s": starts / taken,
            "client_cpu_us": 1e6 * cpu / starts,
            "server_cpu_us": 1e6 * (after.cpu - before.cpu) / starts,
        }
    )


async def _start(start: Start, tasks: int, seconds: float) -> int:
    """Let so many tasks take starts for so many seconds; return how many."""
    until = time.perf_counter() + seconds

    async def work() -> int:
        starts = 0
        while time.perf_counter() < until:
            await start()
            starts += 1
        return starts

    return sum(await asyncio.gather(*(work() for _ in range(tasks))))


def report(results: Results, scale: Scale) -> Report:
    columns = [
        measured("starts/s", "starts_per_s"),
        measured("client CPU µs", "client_cpu_us", 1),
        measured("server CPU µs", "server_cpu_us", 1),
        remarked(),
    ]
    return Report([table("limiter", columns, results)], [])


SCENARIO = Scenario("starts", "A start of a rate limiter", cases, measure, report)
