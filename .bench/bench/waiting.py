"""One process of waiters: `python -m bench.waiting` reads its orders from standard input as one line of JSON.

It says `ready` once it is connected, begins at the instant that the next line names, and finally writes what its
tasks did: a line of JSON with the number of bytes, then those bytes (see `turns.unpacked`).
"""

import asyncio
import itertools
import json
import os
import sys
import time
from array import array
from collections import Counter
from typing import Any, cast

from bench import event_loops
from bench.crowds import stop
from bench.peers import PEERS, Client, ReadWriteClient, Turn
from bench.turns import NEVER

_DRAIN = 20.0
"""Seconds after the end for which the remaining waiters may be served; then they are cancelled, and counted."""

NAME = "bench:shared"


def turn_of(client: Client, orders: dict[str, Any], task: int, name: str = NAME) -> Turn:
    limit, writers = orders["limit"], orders["writers"]
    if writers is not None:
        return cast("ReadWriteClient", client).shared(name, "write" if task < writers else "read")
    return client.semaphore(name, limit) if limit else client.lock(name)


async def _take_turns(
    turn: Turn, task: int, hold: float, until: int, asking: "itertools.count[int]", log: "array[int]"
) -> None:
    acquire, release, clock, sleep = turn.acquire, turn.release, time.monotonic_ns, asyncio.sleep
    fence_of = turn.fence or _no_fence
    while (asked := clock()) < until:
        order = next(asking)
        fence, granted, released = 0, NEVER, NEVER
        try:
            held = await acquire()
            granted = clock()
            await sleep(hold)
            fence = fence_of(held)
            released = clock()
            await release(held)
        finally:
            log.extend((task, order, asked, granted, released, fence))


async def _take_turns_by_block(
    turn: Turn, task: int, hold: float, until: int, asking: "itertools.count[int]", log: "array[int]"
) -> None:
    block, clock, sleep = turn.block, time.monotonic_ns, asyncio.sleep
    fence_of = turn.fence or _no_fence
    assert block is not None
    while (asked := clock()) < until:
        order = next(asking)
        fence, granted, released = 0, NEVER, NEVER
        try:
            async with block() as held:
                granted = clock()
                await sleep(hold)
                fence = fence_of(held)
                released = clock()
        finally:
            log.extend((task, order, asked, granted, released, fence))


def _no_fence(_: Any) -> int:
    return 0


async def _run(orders: dict[str, Any]) -> tuple[dict[str, int], float, bytes]:
    async with PEERS[orders["library"]].connect(orders["url"], orders["connections"]) as client:
        warm = turn_of(client, orders, 0, f"bench:warm:{orders['number']}")
        await warm.release(await warm.acquire())
        names = [f"{NAME}:{number}" for number in range(orders["names"])] or [NAME]
        turns = [turn_of(client, orders, task, names[task % len(names)]) for task in range(orders["waiters"])]
        print("ready", flush=True)
        begin = int(await asyncio.to_thread(sys.stdin.readline))
        until = begin + round(1e9 * orders["seconds"])
        await asyncio.sleep((begin - time.monotonic_ns()) / 1e9)
        log, cpu = array("q"), time.process_time()
        asking = itertools.count()
        take_turns = _take_turns_by_block if orders["style"] == "block" else _take_turns
        tasks = [
            asyncio.create_task(take_turns(turn, task, orders["hold"], until, asking, log))
            for task, turn in enumerate(turns)
        ]
        await asyncio.wait(tasks, timeout=orders["seconds"] + _DRAIN)
        errors = Counter(type(end).__name__ for end in await stop(tasks) if end is not None)
        return dict(errors), time.process_time() - cpu, log.tobytes()


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    errors, cpu, data = event_loops.run(orders["loop"], _run(orders))
    print(json.dumps({"errors": errors, "cpu": cpu, "size": len(data)}), flush=True)
    while data:  # `BufferedWriter.write` loses what is left when the process is stopped in the middle of it
        data = data[os.write(sys.stdout.fileno(), data) :]


if __name__ == "__main__":
    main()
