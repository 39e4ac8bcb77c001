"""Processes that die or stop: how long dead waiters delay the next live one, and when a dead holder's lock is free."""

import asyncio
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from bench.actor import Actor, actor
from bench.figures import Case, Parameters, Results, Run, median
from bench.peers import PEERS, SAFETY
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import Bar, Report, at_most, below, measured, remarked, table

OWN = "aiolocks"
_SETTLE = 0.3
"""Seconds for requests to arrive: not every library shows when they have."""
_PATIENCE = 90.0

_WHAT = {
    "killed": "{} waiters of one process, SIGKILL",
    "killed apart": "{} waiters of as many processes, SIGKILL",
    "stopped": "{} waiters of one process, SIGSTOP",
    "holder": "the holder, SIGKILL",
}


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    return [
        Case(f"{library}: {what}", library, {"what": what, "ttl": scale.crash_ttl, "waiters": scale.doomed})
        for what in _WHAT
        for library in libraries
    ]


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    what, ttl = str(parameters["what"]), float(parameters["ttl"])
    if what == "holder":
        return await _dead_holder(library, server.url, ttl)
    return await _dead_waiters(library, server.url, ttl, what, int(parameters["waiters"]))


async def _dead_waiters(library: str, url: str, ttl: float, what: str, waiters: int) -> Run:
    """Time from a release to the grant of the next live waiter, with others queued before it that died or stopped."""
    peer = PEERS[library]
    apart = what == "killed apart"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(peer.connect(url, peer.pool_for(1)))
        doomed = [
            await stack.enter_async_context(actor(library, url, ttl, tasks=1 if apart else waiters))
            for _ in range(waiters if apart else 1)
        ]
        live = await stack.enter_async_context(actor(library, url, ttl))
        # A library that does not renew needs a lease that lasts long enough; if it renews, all have the same lease.
        turn = client.lock("bench", ttl if peer.renews else SAFETY)
        held = await turn.acquire()
        for one in (*doomed, live):
            await one.ask()
            await asyncio.sleep(_SETTLE if one in (doomed[-1], live) else 0)
        for one in doomed:
            one.signal(signal.SIGSTOP if what == "stopped" else signal.SIGKILL)
        if what != "stopped":
            await asyncio.gather(*(one.wait() for one in doomed))
        released = time.monotonic_ns()
        await turn.release(held)
        return await _next_grant(live, released, "delay_ms")


async def _dead_holder(library: str, url: str, ttl: float) -> Run:
    """Time from the holder's death, which is right after its grant, to the next one."""
    async with actor(library, url, ttl, keeps=True) as holder, actor(library, url, ttl) as live:
        await holder.ask()
        granted = await holder.granted(_PATIENCE)
        await live.ask()
        await asyncio.sleep(0.05)
        holder.kill()
        killed = time.monotonic_ns()
        run = await _next_grant(live, killed, "takeover_ms")
    if "takeover_ms" in run.figures:
        after_ttl = run.figures["takeover_ms"] + (killed - granted) / 1e6 - 1000 * ttl
        run.figures["after_ttl_ms"] = after_ttl
    return run


async def _next_grant(live: Actor, since: int, figure: str) -> Run:
    try:
        return Run({figure: (await live.granted(_PATIENCE) - since) / 1e6})
    except TimeoutError:
        return Run(remarks=(f"not within {_PATIENCE:g} s",))


def report(results: Results, scale: Scale) -> Report:
    tables = []
    for what, title in _WHAT.items():
        rows = {row.removesuffix(f": {what}"): runs for row, runs in results.items() if row.endswith(f": {what}")}
        columns = [measured("next live waiter served after ms", "delay_ms", 1), remarked()]
        if what == "holder":
            columns = [
                measured("next waiter served ms after the kill", "takeover_ms"),
                measured(f"ms after the lease's ttl of {scale.crash_ttl:g} s", "after_ttl_ms"),
                remarked(),
            ]
        tables.append(table(title.format(scale.doomed), columns, rows))
    return Report(tables, _bars(results, scale))


def _bars(results: Results, scale: Scale) -> list[Bar]:
    ttl_ms = 1000 * scale.crash_ttl
    titles = {what: title.format(scale.doomed) for what, title in _WHAT.items()}

    def own(what: str, figure: str) -> float | None:
        return median(results, f"{OWN}: {what}", figure)

    text = "{:,.1f} ms"
    return [
        below(f"{titles['killed']}: under 100 ms in all", own("killed", "delay_ms"), 100, text),
        below(f"{titles['killed apart']}: under 100 ms in all", own("killed apart", "delay_ms"), 100, text),
        at_most(
            f"{titles['stopped']}: one ttl ({ttl_ms:g} ms; and 200 ms for the re-check)",
            own("stopped", "delay_ms"), ttl_ms + 200, text,
        ),
        at_most(f"{titles['holder']}: within ttl + 200 ms", own("holder", "takeover_ms"), ttl_ms + 200, text),
    ]  # fmt: skip


_PANELS = [("delay_ms", "next live waiter served after ms"), ("takeover_ms", "ms after the holder's death")]

SCENARIO = Scenario("crashes", "Dead and stopped waiters, dead holders", cases, measure, report, _PANELS)
