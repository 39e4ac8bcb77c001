"""Ten thousand leases held at once: what it costs to renew them all, and whether one is lost meanwhile."""

import asyncio
import time
from collections.abc import Sequence

from bench.counters import Counters
from bench.crowds import stop
from bench.figures import Case, Parameters, Results, Run, greatest, median
from bench.peers import PEERS, Turn
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import Report, at_most, below, measured, number, remarked, table

OWN, OWN_THREAD = "aiolocks", 'aiolocks, watchdog="thread"'
_PEERS_HOLD = 1.0
"""Number of TTLs for which peers are watched: enough to see each lease renewed once or more. aiolocks has three."""


_LONGEST_RELEASE = 30.0


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    chosen = []
    for library in libraries:
        sizes: dict[str, str | float] = {"leases": scale.leases, "ttl": scale.ttl, "held": scale.held * scale.ttl}
        cannot = "" if PEERS[library].renews else "does not renew"
        if library == "aiolocks":
            chosen.append(Case(OWN, library, sizes))
            chosen.append(Case(OWN_THREAD, library, {**sizes, "watchdog": "thread", "held": _peers_hold(scale)}))
        elif library != "floor":
            chosen.append(Case(library, library, {**sizes, "held": _peers_hold(scale)}, cannot))
    return chosen


def _peers_hold(scale: Scale) -> float:
    return min(_PEERS_HOLD, scale.held) * scale.ttl


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    peer = PEERS[library]
    options = {"watchdog": parameters["watchdog"]} if "watchdog" in parameters else {}
    with Counters(server.admin_url) as counters:
        async with peer.connect(server.url, peer.pool_for(0)) as client:
            ttl = float(parameters["ttl"])
            turns = [client.lock(f"bench:{name}", ttl, **options) for name in range(int(parameters["leases"]))]
            held = await asyncio.gather(*(turn.acquire() for turn in turns))
            before, cpu, begun = counters.read(), time.process_time(), time.perf_counter()
            await asyncio.sleep(float(parameters["held"]))
            taken, cpu, after = time.perf_counter() - begun, time.process_time() - cpu, counters.read()
            ends = [asyncio.create_task(_is_lost(turn, one)) for turn, one in zip(turns, held, strict=True)]
            released, stuck = await asyncio.wait(ends, timeout=_LONGEST_RELEASE)
            lost = sum(end.result() for end in released)
            await stop(stuck)
    counted = {f"of {number(len(ends))} not released within {_LONGEST_RELEASE:g} s": len(stuck)} if stuck else {}
    return Run(
        {
            "held_s": float(parameters["held"]),
            "client_cpu_percent": 100 * cpu / taken,
            "server_cpu_percent": 100 * (after.cpu - before.cpu) / taken,
            "commands_per_s": (after.commands - before.commands) / taken,
            "reads_per_s": (after.reads - before.reads) / taken,
            "lost": float(lost),
        },
        counted=counted,
    )


async def _is_lost(turn: Turn, held: object) -> bool:
    """Release a lease: it was lost if the library says so by an exception or by False."""
    try:
        return await turn.release(held) is False
    except Exception:
        return True


def report(results: Results, scale: Scale) -> Report:
    columns = [
        measured("held s", "held_s"),
        measured("client CPU % of a core", "client_cpu_percent", 2),
        measured("server CPU %", "server_cpu_percent", 2),
        measured("commands/s", "commands_per_s"),
        measured("server reads/s", "reads_per_s"),
        measured("leases lost", "lost"),
        remarked(),
    ]
    setting = f"{number(scale.leases)} leases held at ttl={scale.ttl:g}: "
    held = f"{scale.held:g} × ttl"
    return Report(
        [table("library", columns, results)],
        [
            below(
                f"{setting}the watchdog takes under 5 % of a core",
                median(results, OWN, "client_cpu_percent"), 5, "{:.2f} %",
            ),
            at_most(f"{setting}none is lost in {held} (worst run)", greatest(results, OWN, "lost"), 0, "{:.0f} lost"),
        ],
    )  # fmt: skip


_PANELS = [("client_cpu_percent", "client CPU, % of a core"), ("commands_per_s", "commands/s")]

SCENARIO = Scenario("watchdog", "Many leases held under the watchdog", cases, measure, report, _PANELS)
