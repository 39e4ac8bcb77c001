"""A program that forks while it holds: `python -m tests.faults.support.forking KIND URL TTL WATCHDOG`.

The child tries all that it could do with its copy of the lease, and stays for a while after its parent is dead.
"""

import asyncio
import os
import sys
import time
from typing import Any

from redis.asyncio import Redis

from aiolocks import Lease, Lock, Semaphore


def misuse(lease: Lease) -> str:
    """Do in the child what only the parent may; return what came of it."""

    async def renew_and_release() -> tuple[bool, bool]:
        return await lease.renew(), await lease.release()

    renewed, released = asyncio.new_event_loop().run_until_complete(renew_and_release())
    return f"held {lease.held}, lost {lease.lost}, renewed {renewed}, released {released}"


async def main(kind: str, url: str, ttl: str, watchdog: Any) -> None:
    client: Redis = Redis.from_url(url)
    options: dict[str, Any] = {"ttl": float(ttl), "watchdog": watchdog}
    made = Lock(client, "forked", **options) if kind == "Lock" else Semaphore(client, "forked", 1, **options)
    async with made as lease:
        await asyncio.sleep(0.5 * lease.remaining())  # it has been renewed
        child = os.fork()
        if child == 0:
            print(f"child: {misuse(lease)}", flush=True)
            parent = os.getppid()
            while os.getppid() == parent:
                time.sleep(0.01)
            time.sleep(2 * float(ttl))
            print("child: still here", flush=True)
            os._exit(0)
        await asyncio.sleep(2 * float(ttl))
        lease.check()
        print(f"parent: held {lease.held}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
