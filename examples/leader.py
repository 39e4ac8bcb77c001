"""Elect a leader: one of three nodes leads, and when it is killed another takes over.

    python examples/leader.py

prints, in whatever order their turns come (on redis://localhost, or the Redis whose URL you append),

    ann leads
    ann is killed
    bob leads
    bob is killed
    cid leads
    cid is killed
"""

import asyncio
import multiprocessing
import sys
from multiprocessing.connection import Connection

from aiolocks import Lease, LockManager


async def stand(redis_url: str, node: str, elected: "Connection[str, str]") -> None:
    async def lead(lease: Lease) -> None:  # cancelled if the lease is lost; then this node stands again
        elected.send(node)
        await asyncio.sleep(3600)

    async with LockManager.from_url(redis_url, ttl=2) as locks:  # 2 s after it died, a leader is replaced
        await locks.election("example:leader").run(lead)


def start(redis_url: str, node: str, elected: "Connection[str, str]") -> None:
    asyncio.run(stand(redis_url, node, elected))


def main(redis_url: str = "redis://localhost") -> None:
    spawn = multiprocessing.get_context("spawn")
    elections, elected = spawn.Pipe(duplex=False)
    nodes = {node: spawn.Process(target=start, args=(redis_url, node, elected)) for node in ("ann", "bob", "cid")}
    for process in nodes.values():
        process.start()
    elected.close()  # so that recv() below would notice the end of the last node
    while nodes:
        leader = elections.recv()
        print(leader, "leads")
        if elections.poll(1):
            print("and so does", elections.recv())
        nodes[leader].kill()
        nodes.pop(leader).join()
        print(leader, "is killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
