"""Stop a worker by SIGTERM, as Kubernetes and systemd do: its lock is free at once, and not after its TTL.

    python examples/graceful.py

works until SIGTERM or Ctrl-C (on redis://localhost, or the Redis whose URL you append), and prints

    working
    cleaning up, still under the lock
    stopped; the lock is free
"""

import asyncio
import signal
import sys
from contextlib import suppress

from aiolocks import LockManager


async def work() -> None:
    try:
        print("working", flush=True)
        await asyncio.Event().wait()  # the job
    finally:
        print("cleaning up, still under the lock", flush=True)


async def main(redis_url: str = "redis://localhost") -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # else SIGTERM unwinds nothing
    async with LockManager.from_url(redis_url, ttl=60) as locks:
        async with locks.lock("example:graceful"):
            await work()


if __name__ == "__main__":
    with suppress(asyncio.CancelledError, KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
    print("stopped; the lock is free")
