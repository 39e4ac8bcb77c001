"""What a hand-off costs the server by queue length: commands, those in scripts too; and the release script's time."""

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from redis import Redis

from bench.contention import contend
from bench.counters import Counters
from bench.crowds import start, stop
from bench.figures import Case, Parameters, Results, Run, median
from bench.peers import PEERS, Turn
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import NOTHING, Bar, Report, at_most, measured, number, remarked, table

OWN = "aiolocks"
_RELEASES = 200
_SAME = 1.05
"""Maximum ratio at which commands per hand-off count as the same: re-checks, which come every second, are included."""
_PATIENCE = 60.0
_SERVER = {"maxclients": "12000", "slowlog-max-len": "20000", "slowlog-log-slower-than": "-1"}


def _handoff_row(library: str, waiters: int) -> str:
    return f"{library}, {number(waiters)} waiters"


def _release_row(library: str, sessions: int, length: int) -> str:
    return f"{library}, {sessions} session{'s' if sessions > 1 else ''}, queue of {number(length)}"


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    chosen = []
    for library in libraries:
        if PEERS[library].queues:
            # One process: a message to another takes two more commands, and how often it is sent depends on the length.
            sizes = {"processes": 1, "limit": 0, "seconds": scale.seconds, "warm_up": scale.warm_up}
            chosen += [
                Case(_handoff_row(library, waiters), library, {**sizes, "waiters": waiters}) for waiters in scale.crowds
            ]
            chosen += [
                Case(_release_row(library, sessions, length), library, {"sessions": sessions, "length": length})
                for sessions in (scale.sessions if library == OWN else scale.sessions[:1])
                for length in scale.lengths
            ]
    return chosen


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    if "length" in parameters:
        return await _time_releases(library, int(parameters["length"]), int(parameters["sessions"]), server)
    return await contend(library, parameters, server)


async def _time_releases(library: str, length: int, sessions: int, server: Server) -> Run:
    """Queue waiters, grant some of them their turn, and read in the server's slow log how long each release took."""
    peer, allowed = PEERS[library], asyncio.Semaphore(0)
    releases = min(_RELEASES, length)

    async def wait(turn: Turn) -> None:
        held = await turn.acquire()
        await allowed.acquire()
        await turn.release(held)

    async with AsyncExitStack() as stack:
        counters = stack.enter_context(Counters(server.admin_url))
        clients = [
            await stack.enter_async_context(peer.connect(server.url, peer.pool_for(length))) for _ in range(sessions)
        ]
        for client in clients:  # so that all scripts are known, and each session listens
            warm = client.lock("bench:warm")
            await warm.release(await warm.acquire())
        turns = [clients[place % sessions].lock("bench") for place in range(length + releases)]
        asked = _scripts_run(counters)
        tasks = await start([wait(turn) for turn in turns])
        await _until(lambda: _scripts_run(counters) - asked >= len(turns))
        with Redis.from_url(server.admin_url) as admin:
            admin.config_set("slowlog-log-slower-than", 0)
            for _ in range(releases):
                allowed.release()
            await _until(lambda: sum(task.done() for task in tasks) >= releases)
            admin.config_set("slowlog-log-slower-than", -1)
            log = admin.slowlog_get(20_000)
        await stop(reversed(tasks))
    sha = turns[0].release_sha
    times = [entry["duration"] for entry in log if sha is not None and entry["command"].startswith(b"EVALSHA " + sha)]
    return Run({"release_us": statistics.median(times), "releases": float(len(times))} if times else {})


def _scripts_run(counters: Counters) -> int:
    calls = counters.calls()
    return calls.get("evalsha", 0) + calls.get("eval", 0)


async def _until(reached: Callable[[], bool]) -> None:
    give_up_at = time.perf_counter() + _PATIENCE
    while not reached():
        if time.perf_counter() > give_up_at:
            raise TimeoutError(f"not within {_PATIENCE:g} s")
        await asyncio.sleep(0.02)


def report(results: Results, scale: Scale) -> Report:
    rows = [row for row in results if row.endswith(" waiters")]
    handoffs = [
        measured("commands per hand-off", "commands_per_handoff", 2),
        measured("server reads", "reads_per_handoff", 2),
        measured("server CPU µs", "server_cpu_us", 1),
        measured("hand-offs/s", "handoffs_per_s"),
        remarked(),
    ]
    releases = [measured("release script µs", "release_us", 1), measured("releases", "releases"), remarked()]
    return Report(
        [
            table("1 process", handoffs, results, rows),
            table("while others wait", releases, results, [row for row in results if row not in rows]),
        ],
        [_same(results, scale), *(_no_faster_than_log(results, scale, sessions) for sessions in scale.sessions)],
    )


def _same(results: Results, scale: Scale) -> Bar:
    few, many = (median(results, _handoff_row(OWN, waiters), "commands_per_handoff") for waiters in scale.crowds)
    few_text, many_text = map(number, scale.crowds)
    bar = f"commands per hand-off the same at {few_text} and at {many_text} waiters (within 5 %)"
    if few is None or many is None:
        return Bar(bar, NOTHING, None)
    return Bar(bar, f"{few:.2f} and {many:.2f}", max(few, many) / min(few, many) <= _SAME)


def _no_faster_than_log(results: Results, scale: Scale, sessions: int) -> Bar:
    shortest, longest = min(scale.lengths), max(scale.lengths)
    short, long = (median(results, _release_row(OWN, sessions, length), "release_us") for length in (shortest, longest))
    allowed = math.log(longest) / math.log(shortest)
    return at_most(
        f"release script, {sessions} session(s): from {number(shortest)} to {number(longest)} waiters at most "
        f"log n = {allowed:.1f} × the time",
        long / short if long and short else None, allowed, "{:.2f} ×",
    )  # fmt: skip


_PANELS = [("commands_per_handoff", "commands per hand-off"), ("release_us", "release script, µs")]

SCENARIO = Scenario("commands", "What a hand-off costs the server", cases, measure, report, _PANELS, _SERVER)
