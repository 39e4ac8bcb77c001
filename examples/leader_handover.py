"""Hand leadership over without a gap: a leader that gets SIGTERM finishes its step, and the next one leads at once.

    python examples/leader_handover.py

prints, in whatever order their turns come (on redis://localhost, or the Redis whose URL you append),

    ann leads
    ann has finished its step
    bob leads at once
    bob has finished its step

The lease lasts 30 s, but a leader that ends releases it; only a crashed one is waited for.
"""

import asyncio
import multiprocessing
import signal
import sys
from multiprocessing.connection import Connection

from aiolocks import Lease, LockManager


async def stand(redis_url: str, node: str, told: "Connection[str, str]") -> None:
    ending, loop = asyncio.Event(), asyncio.get_running_loop()

    async def lead(lease: Lease) -> None:
        told.send(node)
        await ending.wait()
        await asyncio.sleep(0.2)  # its last step, which SIGTERM must not cut in two
        print(node, "has finished its step", flush=True)

    async with LockManager.from_url(redis_url, ttl=30) as locks:
        election = locks.election("example:leader-handover")
        candidate = asyncio.ensure_future(election.run(lead))
        loop.add_signal_handler(signal.SIGTERM, lambda: ending.set() if election.is_leader else candidate.cancel())
        await asyncio.wait([candidate])  # until `lead` returns, or at once where it only stands


def start(redis_url: str, node: str, told: "Connection[str, str]") -> None:
    asyncio.run(stand(redis_url, node, told))


def main(redis_url: str = "redis://localhost") -> None:
    spawn = multiprocessing.get_context("spawn")
    elections, told = spawn.Pipe(duplex=False)
    nodes = {node: spawn.Process(target=start, args=(redis_url, node, told)) for node in ("ann", "bob")}
    for process in nodes.values():
        process.start()
    for how in ("leads", "leads at once"):
        assert elections.poll(10), "no node leads"
        leader = elections.recv()
        print(leader, how, flush=True)
        nodes[leader].terminate()  # SIGTERM
        nodes[leader].join()


if __name__ == "__main__":
    main(*sys.argv[1:])
