"""One task that acquires and releases, over and over: what a lock costs when no other task wants it."""

import time
from collections.abc import Sequence
from typing import cast

from bench.counters import Counters
from bench.figures import Case, Parameters, Results, Run, ratio
from bench.loops import LOOPS
from bench.peers import PEERS, Client, ReadWriteClient, Turn
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import Column, Report, at_least, compared, measured, remarked, table

OWN, OWN_BLOCK = "aiolocks acquire/release", "aiolocks async with"
FLOOR, FLOOR_BLOCK = "floor", "floor async with"

WAYS: dict[str, Parameters] = {
    OWN: {"style": "pair"},
    OWN_BLOCK: {"style": "block"},
    "aiolocks async with, new Lock": {"style": "new"},
    "aiolocks async with, Semaphore": {"style": "block", "limit": 10},
}
"""How aiolocks is used, by what the tables call it."""


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    chosen = []
    for library in libraries:
        sizes = {"seconds": scale.seconds, "warm_up": scale.warm_up}
        if library == "aiolocks":
            chosen += [Case(row, library, {**sizes, **how}) for row, how in WAYS.items()]
        else:
            chosen.append(Case(library, library, {**sizes, "style": "pair"}))
        if library == FLOOR:
            chosen.append(Case(FLOOR_BLOCK, library, {**sizes, "style": "block"}))
    return chosen


def turn_of(client: Client, name: str, parameters: Parameters) -> Turn:
    if "mode" in parameters:
        return cast("ReadWriteClient", client).shared(name, str(parameters["mode"]))
    return client.semaphore(name, int(parameters["limit"])) if "limit" in parameters else client.lock(name)


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    loop = LOOPS[parameters["style"]]
    with Counters(server.admin_url) as counters:
        async with PEERS[library].connect(server.url) as client:
            turn = turn_of(client, "bench", parameters)
            await loop(turn, time.perf_counter() + float(parameters["warm_up"]))
            before, cpu, begun = counters.read(), time.process_time(), time.perf_counter()
            pairs = await loop(turn, begun + float(parameters["seconds"]))
            taken, cpu, after = time.perf_counter() - begun, time.process_time() - cpu, counters.read()
            return Run(
                {
                    "pairs_per_s": pairs / taken,
                    "us_per_pair": 1e6 * taken / pairs,
                    "client_cpu_us": 1e6 * cpu / pairs,
                    "server_cpu_us": 1e6 * (after.cpu - before.cpu) / pairs,
                    "commands_per_pair": (after.commands - before.commands) / pairs,
                }
            )


def cpu_columns(results: Results, floor: str) -> list[Column]:
    """Return the columns of processor times, beside those of the row *floor*."""
    return [
        measured("client CPU µs", "client_cpu_us", 1),
        compared("× floor", "client_cpu_us", lambda _: floor, results),
        measured("server CPU µs", "server_cpu_us", 1),
        compared("× floor", "server_cpu_us", lambda _: floor, results),
    ]


def report(results: Results, scale: Scale) -> Report:
    columns = [
        measured("pairs/s", "pairs_per_s"),
        compared("× redis-py", "pairs_per_s", lambda _: "redis-py", results),
        measured("µs/pair", "us_per_pair", 1),
        *cpu_columns(results, FLOOR),
        measured("commands", "commands_per_pair", 1),
        remarked(),
    ]
    bar = "one task: pairs/s at least those of redis-py's Lock, with fencing, watchdog and loss scope (async with)"
    by_hand = "the same by acquire/release"
    return Report(
        [table("library", columns, results)],
        [
            at_least(bar, ratio(results, OWN_BLOCK, "redis-py", "pairs_per_s"), 1.0),
            at_least(by_hand, ratio(results, OWN, "redis-py", "pairs_per_s"), 1.0),
        ],
    )


SCENARIO = Scenario("one-task", "One task: acquire + release", cases, measure, report, [("pairs_per_s", "pairs/s")])
