"""How much memory a lease and a waiter take, beyond the same tasks on asyncio.Lock; by tracemalloc."""

import asyncio
import gc
import tracemalloc
from collections.abc import Coroutine, Sequence
from typing import Any

from bench.crowds import failures, settle, start, stop
from bench.figures import Case, Parameters, Results, Run, greatest
from bench.peers import PEERS, Turn
from bench.scale import Scale
from bench.scenario import Scenario, Server
from bench.tables import Report, below, measured, number, remarked, table

OWN, BASE = "aiolocks", "asyncio.Lock"
_KINDS = ("lease", "waiter")
_KIB = 1024
_LONGEST_END = 20.0


def cases(scale: Scale, libraries: Sequence[str]) -> list[Case]:
    chosen = []
    for kind in _KINDS:
        sizes: dict[str, str | float] = {"kind": kind, "tasks": scale.crowd}
        # If each waiter keeps a connection, ten thousand of them are a separate question: see `crowd`.
        fewer: dict[str, str | float] = {
            **sizes,
            "tasks": max(scale.crowd // 10, 3) if kind == "waiter" else scale.crowd,
        }
        chosen.append(Case(f"{BASE}, {kind}", OWN, {**sizes, "base": 1}))
        chosen += [
            Case(f"{library}, {kind}", library, sizes if library == OWN else fewer)
            for library in libraries
            if kind == "waiter" or PEERS[library].renews
        ]
    return chosen


async def measure(library: str, parameters: Parameters, server: Server) -> Run:
    tasks, waiting = int(parameters["tasks"]), parameters["kind"] == "waiter"
    if parameters.get("base"):
        shared = asyncio.Lock()
        return await _measure([_local(shared if waiting else asyncio.Lock()) for _ in range(tasks)], waiting)
    peer = PEERS[library]
    async with peer.connect(server.url, peer.pool_for(tasks if waiting else 0)) as client:
        warm = client.lock("bench:warm")
        await warm.release(await warm.acquire())
        return await _measure([client.lock("bench" if waiting else f"bench:{n}") for n in range(tasks)], waiting)


def _local(lock: asyncio.Lock) -> Turn:
    async def release(_: object) -> None:
        lock.release()

    return Turn(lock.acquire, release)


async def _measure(turns: Sequence[Turn], waiting: bool) -> Run:
    """Let each task hold its lock, or let the first task hold it while all others wait."""
    end = asyncio.Event()

    async def hold(turn: Turn) -> None:
        held = await turn.acquire()
        await end.wait()
        await turn.release(held)

    before = await start([hold(turns[0])] if waiting else [])
    if waiting:
        await asyncio.sleep(0.1)
    crowd = [hold(turn) for turn in (turns[1:] if waiting else turns)]
    tasks, grown = await _grown(crowd)
    failed = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    if waiting:
        await stop(tasks)
    end.set()
    await asyncio.wait([*tasks, *before], timeout=_LONGEST_END)
    await stop([*tasks, *before])
    return Run({"bytes_each": grown / len(tasks), "tasks": float(len(tasks))}, counted=failures(failed, len(tasks)))


async def _grown(work: Sequence[Coroutine[Any, Any, None]]) -> tuple[list["asyncio.Task[None]"], float]:
    """Start tasks; return them, and the bytes that they had taken when memory no longer grew."""
    gc.collect()
    tracemalloc.start()
    try:
        before = _traced()
        tasks = await start(work)
        return tasks, await settle(_traced) - before
    finally:
        tracemalloc.stop()


def _traced() -> float:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def report(results: Results, scale: Scale) -> Report:
    columns = [measured("tasks", "tasks"), measured("KiB each", "bytes_each", 2, scale=1 / _KIB), remarked()]
    tables = [table(kind, columns, results, [row for row in results if row.endswith(f", {kind}")]) for kind in _KINDS]
    each, base = greatest(results, f"{OWN}, waiter", "bytes_each"), greatest(results, f"{BASE}, waiter", "bytes_each")
    bar = below(
        f"{number(scale.crowd)} waiters in one process: under 4 KiB each beyond the same tasks on asyncio.Lock",
        None if each is None or base is None else (each - base) / _KIB, 4, "{:.2f} KiB",
    )  # fmt: skip
    return Report(tables, [bar], ["The task itself is counted too, and the library's object where each has its own."])


SCENARIO = Scenario(
    "memory", "Memory of a lease and of a waiter", cases, measure, report, [("bytes_each", "bytes each")]
)
