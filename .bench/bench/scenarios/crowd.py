"""Ten thousand waiters in one process: connections taken, how soon all are served, and whether in order."""

import asyncio
import time
from collections.abc import Sequence

from bench.counters import Counters
from bench.crowds import failures, settle, start, stop
from bench.figures import Case, Parameters, Results, Run, greatest, remarks
from bench.peers import PEERS, Turn
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import NOTHING, Bar, Column, Report, at_most, measured, number, remarked, table

OWN = "aiolocks"
_LONGEST = 20.0
"""Seconds after which the remaining waiters are cancelled, and counted."""


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    return [Case(library, library, {"waiters": scale.crowd}) for library in libraries]


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    waiters, peer = int(parameters["waiters"]), PEERS[library]
    served: list[int] = []

    async def wait(turn: Turn, number: int) -> None:
        held = await turn.acquire()
        served.append(number)
        await turn.release(held)

    with Counters(server.admin_url) as counters:
        async with peer.connect(server.url, peer.pool_for(waiters)) as client:
            first = client.lock("bench")
            held = await first.acquire()
            tasks = await start([wait(client.lock("bench"), number) for number in range(waiters)])
            connections = await settle(counters.connections)
            told = await _release(first, held)
            begun = time.perf_counter()
            await asyncio.wait(tasks, timeout=_LONGEST)
            taken = time.perf_counter() - begun
            counted = failures(await stop(tasks), waiters)
    figures = {"connections": connections, "served": float(len(served))}
    if len(served) == waiters:
        figures |= {"served_s": taken, "in_order": float(served == list(range(waiters)))}
    return Run(figures, told, counted)


async def _release(turn: Turn, held: object) -> tuple[str, ...]:
    try:
        await turn.release(held)
    except Exception as error:
        return (f"the holder's own release failed: {type(error).__name__}",)
    return ()


def report(results: Results, scale: Scale) -> Report:
    columns = [
        measured("connections", "connections"),
        measured("served", "served"),
        measured("all served after s", "served_s", 2),
        Column("in order of asking", _in_order),
        remarked(),
    ]
    runs = results.get(OWN, ())
    right = [run.figures.get("in_order") == 1 and run.figures.get("served") == scale.crowd for run in runs]
    setting = f"{number(scale.crowd)} waiters in one process: "
    told = "; ".join(remarks(runs)) or f"{sum(right)} of {len(right)} runs"
    return Report(
        [table("library", columns, results)],
        [
            at_most(f"{setting}at most 4 connections", greatest(results, OWN, "connections"), 4, "{:.0f}"),
            Bar(f"{setting}all served in order", told, all(right) if right else None),
        ],
        [f"A waiter that is not served within {_LONGEST:g} s after the holder's release is cancelled."],
    )


def _in_order(_: str, runs: Sequence[Run]) -> str:
    found = {run.figures["in_order"] for run in runs if "in_order" in run.figures}
    return NOTHING if not found else "yes" if found == {1.0} else "no" if found == {0.0} else "not always"


_PANELS = [("connections", "connections"), ("served", "served")]
_SERVER = {"maxclients": "12000"}

SCENARIO = Scenario("crowd", "A crowd of waiters in one process", cases, measure, report, _PANELS, _SERVER)
