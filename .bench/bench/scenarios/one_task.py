"""One task that acquires and releases, over and over: what a lock costs when no other task wants it."""

import time
from collections.abc import Sequence
from typing import cast

from bench.counters import Counters
from bench.figures import Case, Parameters, Results, Run, ratio
from bench.loops import block_loop, pair_loop
from bench.peers import PEERS, Client, ReadWriteClient, Turn
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import Report, at_least, compared, measured, remarked, table

OWN, OWN_BLOCK = "aiolocks acquire/release", "aiolocks async with"


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    chosen = []
    for library in libraries:
        sizes = {"seconds": scale.seconds, "warm_up": scale.warm_up}
        if library == "aiolocks":
            chosen += [
                Case(OWN, library, {**sizes, "style": "pair"}),
                Case(OWN_BLOCK, library, {**sizes, "style": "block"}),
            ]
        else:
            chosen.append(Case(library, library, {**sizes, "style": "pair"}))
    return chosen


def _turn(client: Client, parameters: Parameters) -> Turn:
    if "mode" in parameters:
        return cast("ReadWriteClient", client).shared("bench", str(parameters["mode"]))
    return client.lock("bench")


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    loop = block_loop if parameters["style"] == "block" else pair_loop
    with Counters(server.admin_url) as counters:
        async with PEERS[library].connect(server.url) as client:
            turn = _turn(client, parameters)
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


def report(results: Results, scale: Scale) -> Report:
    columns = [
        measured("pairs/s", "pairs_per_s"),
        compared("× redis-py", "pairs_per_s", lambda _: "redis-py", results),
        measured("µs/pair", "us_per_pair", 1),
        measured("client CPU µs", "client_cpu_us", 1),
        measured("server CPU µs", "server_cpu_us", 1),
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
