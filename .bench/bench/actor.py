"""A process that asks for a lock, to be killed or stopped: `python -m bench.actor`, and a line of JSON as orders.

It says `up` when it is connected, waits for a line, has its tasks ask, says `asked`, and `granted` with the instant
(nanoseconds of CLOCK_MONOTONIC) for each grant. A task keeps what it was granted, or releases it at once; or it blocks
the loop in a block of its own and works on, and then says `ended` with the instants at which the loop was back and the
body was over, and the error if there was one.
"""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, final

from bench import event_loops
from bench.peers import PEERS, Turn
from bench.processes import REPOSITORY, environment

_UP_WITHIN = 20.0


@final
class Actor:
    """The process, as the measuring process sees it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid = process.pid

    async def ask(self) -> None:
        """Have its tasks ask; return when they have."""
        await self.expect("up", _UP_WITHIN)
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        await self.expect("asked", _UP_WITHIN)

    async def granted(self, within: float) -> int:
        """Return the instant of its next grant.

        Raises:
            TimeoutError: There was none within so many seconds.
        """
        return int(await self.expect("granted", within))

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    async def wait(self) -> None:
        """Return when it is dead."""
        await self._process.wait()

    async def expect(self, word: str, within: float) -> str:
        """Return what follows *word* on the next line that it says."""
        assert self._process.stdout is not None
        line = (await asyncio.wait_for(self._process.stdout.readline(), within)).decode()
        if not line.startswith(word):
            raise RuntimeError(f"an actor said {line!r}, not {word!r}")
        return line.removeprefix(word).strip()


@asynccontextmanager
async def actor(
    library: str,
    url: str,
    ttl: float,
    *,
    tasks: int = 1,
    keeps: bool = False,
    blocks: float = 0.0,
    works: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> AsyncIterator[Actor]:
    """Run a process of *tasks* that each ask once for `bench`, with a lease of *ttl* seconds; killed on leaving.

    A task that *blocks* the loop for so many seconds then *works* on for so many.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.actor",
        stdin=PIPE, stdout=PIPE, cwd=REPOSITORY, env=environment(),
    )  # fmt: skip
    try:
        orders = {"library": library, "url": url, "ttl": ttl, "tasks": tasks, "keeps": keeps}
        orders |= {"loop": event_loops.running(), "blocks": blocks, "works": works, "options": dict(options or {})}
        assert process.stdin is not None
        process.stdin.write(json.dumps(orders).encode() + b"\n")
        yield Actor(process)
    finally:
        if process.returncode is None:
            process.kill()  # a stopped one too
        await process.wait()


async def _act(orders: dict[str, Any]) -> None:
    peer = PEERS[orders["library"]]
    async with peer.connect(orders["url"], peer.pool_for(orders["tasks"])) as client:
        warm = client.lock(f"bench:warm:{time.monotonic_ns()}", orders["ttl"])
        await warm.release(await warm.acquire())
        print("up", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        turns = [client.lock("bench", orders["ttl"], **orders["options"]) for _ in range(orders["tasks"])]
        act = _block if orders["blocks"] else _ask
        tasks = [asyncio.create_task(act(turn, orders)) for turn in turns]
        await asyncio.sleep(0)  # each has begun to ask
        print("asked", flush=True)
        await asyncio.gather(*tasks)


async def _ask(turn: Turn, orders: dict[str, Any]) -> None:
    held = await turn.acquire()
    print(f"granted {time.monotonic_ns()}", flush=True)
    if orders["keeps"]:
        await asyncio.Event().wait()
    await turn.release(held)


async def _block(turn: Turn, orders: dict[str, Any]) -> None:
    assert turn.block is not None
    woke = stopped = 0
    told = ""
    try:
        async with turn.block():
            print(f"granted {time.monotonic_ns()}", flush=True)
            await asyncio.sleep(orders["works"])  # whatever renews it is under way
            time.sleep(orders["blocks"])
            woke = time.monotonic_ns()
            try:
                await asyncio.sleep(orders["works"])
            finally:
                stopped = time.monotonic_ns()
    except Exception as error:
        told = type(error).__name__
    print(f"ended {woke} {stopped} {told}", flush=True)


if __name__ == "__main__":
    orders = json.loads(sys.stdin.readline())
    event_loops.run(orders["loop"], _act(orders))
