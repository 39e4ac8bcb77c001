"""The loops of tasks in throughput scenarios: each runs until its time is over."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from bench.peers import Turn


async def pair_loop(turn: Turn, until: float) -> int:
    """Acquire and release until `time.perf_counter()` says *until*, at least once; return how often."""
    acquire, release, clock = turn.acquire, turn.release, time.perf_counter
    pairs = 0
    while True:
        await release(await acquire())
        pairs += 1
        if clock() >= until:
            return pairs


async def block_loop(turn: Turn, until: float) -> int:
    """The same by `async with`."""
    block, clock = turn.block, time.perf_counter
    assert block is not None
    pairs = 0
    while True:
        async with block():
            pairs += 1
        if clock() >= until:
            return pairs


def new_block_loop(turn: Turn, until: float) -> Awaitable[int]:
    """The same with a new lock for each block."""
    return block_loop(replace(turn, block=turn.new_block), until)


LOOPS: dict[str | float, Callable[[Turn, float], Awaitable[int]]] = {
    "pair": pair_loop, "block": block_loop, "new": new_block_loop,
}  # fmt: skip
"""By the style that a case names."""
