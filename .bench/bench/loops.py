"""The loops of tasks in throughput scenarios: each runs until its time is over."""

import time

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
