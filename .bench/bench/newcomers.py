"""Names that were never used before: what each use costs, and what it leaves in the process.

Python collects garbage by itself, except while the leftovers are counted: then garbage collection is off.
"""

import asyncio
import gc
import itertools
import os
import time
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from bench.counters import Counters
from bench.crowds import failures
from bench.figures import Run
from bench.peers import Client, Turn

PHASES = 10
"""Number of phases of each of two styles, in turn: noise that lasts longer than a few phases falls on both alike."""
PAIRS = 6
"""Number of pairs that a task makes on its new name."""

Make: TypeAlias = Callable[[str], AbstractAsyncContextManager[Any]]
Use: TypeAlias = Callable[[int, float], Awaitable[int]]
"""Makes pairs as the task with this number until this `time.perf_counter()`; returns how many."""


@dataclass(slots=True)
class Cost:
    """What all phases of one style took."""

    pairs: int = 0
    seconds: float = 0.0
    client_cpu: float = 0.0
    server_cpu: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, float]:
        """Return the costs per pair; none if there was no pair."""
        if not self.pairs:
            return {}
        return {
            "pairs_per_s": self.pairs / self.seconds,
            "client_cpu_us": 1e6 * self.client_cpu / self.pairs,
            "server_cpu_us": 1e6 * self.server_cpu / self.pairs,
        }


def uses(make: Make, tasks: int) -> dict[str, Use]:
    """Return the styles: a `new` name each time, a `kept` lock of each task's own, or one made `again` for each use."""
    kept = [make(f"kept:{task}") for task in range(tasks)]
    numbers, clock = itertools.count(), time.perf_counter

    async def use_new(_: int, until: float) -> int:
        pairs = 0
        while True:
            async with make(f"order:{next(numbers)}"):
                pairs += 1
            if clock() >= until:
                return pairs

    async def use_kept(task: int, until: float) -> int:
        lock, pairs = kept[task], 0
        while True:
            async with lock:
                pairs += 1
            if clock() >= until:
                return pairs

    async def use_again(task: int, until: float) -> int:
        name, pairs = f"kept:{task}", 0
        while True:
            async with make(name):
                pairs += 1
            if clock() >= until:
                return pairs

    return {"new": use_new, "kept": use_kept, "again": use_again}


async def alternate(use: Use, base: Use, tasks: int, seconds: float, warm_up: float, counters: Counters) -> Run:
    """Measure *use* in turns with *base*, for so many seconds each, and return the figures of *use*.

    `times_kept` is its processor time per pair over that of *base*, in this one run and on the same connections.
    """
    ours, theirs = Cost(), Cost()
    for style in (use, base):
        await _phase(style, tasks, warm_up / 2, Cost(), counters)
    for number in range(PHASES):
        turn = [(use, ours), (base, theirs)]
        for style, cost in reversed(turn) if number % 2 else turn:
            await _phase(style, tasks, seconds / PHASES, cost, counters)
    figures = ours.figures()
    if ours.pairs and theirs.pairs:
        figures["times_kept"] = figures["client_cpu_us"] / theirs.figures()["client_cpu_us"]
    return Run(figures, counted={f"tasks failed: {error}": count for error, count in ours.errors.items()})


async def _phase(use: Use, tasks: int, seconds: float, cost: Cost, counters: Counters) -> None:
    before, cpu, begun = counters.read(), time.process_time(), time.perf_counter()
    until = begun + seconds
    ends = await asyncio.gather(*(use(task, until) for task in range(tasks)), return_exceptions=True)
    cost.seconds += time.perf_counter() - begun
    cost.client_cpu += time.process_time() - cpu
    cost.server_cpu += counters.read().cpu - before.cpu
    cost.pairs += sum(end for end in ends if isinstance(end, int))
    cost.errors.update(type(end).__name__ for end in ends if isinstance(end, BaseException))


async def arrive(client: Client, style: str, tasks: int, seconds: float, counters: Counters) -> Run:
    """Let *tasks* tasks at once make six pairs each on new names, by `pair` or `block`; repeat that for *seconds*.

    One round before that is not measured: it connects.
    """
    use_up = _block_pairs if style == "block" else _pairs
    numbers, ends = itertools.count(), list[BaseException | None]()

    async def come() -> None:
        await use_up(client.lock(f"order:{next(numbers)}"))

    async def all_come() -> Sequence[BaseException | None]:
        return await asyncio.gather(*(come() for _ in range(tasks)), return_exceptions=True)

    await all_come()
    before, cpu, begun = counters.read(), time.process_time(), time.perf_counter()
    while (taken := time.perf_counter() - begun) < seconds or not ends:
        ends += await all_come()
    cpu, after = time.process_time() - cpu, counters.read()
    failed = sum(end is not None for end in ends)
    cost = Cost(PAIRS * (len(ends) - failed), taken, cpu, after.cpu - before.cpu)
    return Run({**cost.figures(), "errors": float(failed)}, counted=failures(ends, len(ends)))


async def _pairs(turn: Turn) -> None:
    acquire, release = turn.acquire, turn.release
    for _ in range(PAIRS):
        await release(await acquire())


async def _block_pairs(turn: Turn) -> None:
    block = turn.block
    assert block is not None
    for _ in range(PAIRS):
        async with block():
            pass


async def what_stays(make: Make, tasks: int, names: int) -> Run:
    """Use so many names once each, and return the growth of the process per name; nothing is collected meanwhile.

    The figure of tracemalloc comes from a tenth as many names after that, because tracemalloc itself takes memory.
    """
    numbers = itertools.count()

    async def use(share: int) -> None:
        for _ in range(share):
            async with make(f"order:{next(numbers)}"):
                pass

    async def use_names(count: int) -> None:
        await asyncio.gather(*(use(count // tasks) for _ in range(tasks)))

    few = max(names // 10, tasks)
    try:
        await use_names(few)
        gc.collect()
        gc.disable()
        await use_names(few)  # makes room first: with the collector off, more memory is in use at once
        objects, resident = len(gc.get_objects()), _resident()
        await use_names(names)
        figures = {"objects_each": (len(gc.get_objects()) - objects) / names}
        if resident:
            figures["resident_bytes_each"] = (_resident() - resident) / names
        tracemalloc.start()
        await use_names(few)
        traced = tracemalloc.get_traced_memory()[0]
        await use_names(few)
        figures["traced_bytes_each"] = (tracemalloc.get_traced_memory()[0] - traced) / few
    finally:
        tracemalloc.stop()
        gc.enable()
    return Run(figures)


def _resident() -> int:
    """Return the bytes of memory that the process has; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
