"""A candidate of an election, until it is killed: `python -m tests.faults.support.leading URL NAME TTL LOG`."""

import asyncio
import sys
import time

from aiolocks import Lease, LockManager
from aiolocks.testing import Recorder
from tests.support.workers import ACQUIRED, LOST, RELEASED

STEP = 0.02
"""Seconds between two looks at the lease."""


async def main(url: str, name: str, ttl: str, log: str) -> None:
    history = Recorder(log)

    async def lead(lease: Lease) -> None:
        until_ns = time.monotonic_ns()
        history.record(ACQUIRED, lease)
        try:
            while True:
                left = lease.remaining()
                if left:  # a process that is stopped does not lead meanwhile, though it notices the end only afterwards
                    until_ns = time.monotonic_ns() + round(left * 1e9)
                await asyncio.sleep(STEP)
        finally:
            now_ns = time.monotonic_ns()
            history.record(RELEASED if lease.held else LOST, lease, at_ns=min(now_ns, until_ns))

    async with LockManager.from_url(url, ttl=float(ttl)) as locks:
        print("up", flush=True)
        await locks.election(name).run(lead)
    print("stands no more", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
