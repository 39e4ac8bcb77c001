"""Let the crons of several machines start one job at the same time: while one machine runs it, the others skip it.

    python examples/cron.py

prints (on redis://localhost, or the Redis whose URL you append)

    not here: another machine is at it
    not here: another machine is at it
    the nightly report is ready

A machine that comes when the others have finished does the job again. To do it once a night, keep a record of each
night.
"""

import asyncio
import multiprocessing
import sys
from multiprocessing.synchronize import Barrier

from aiolocks import LockManager


async def nightly_report(redis_url: str) -> None:
    async with LockManager.from_url(redis_url, ttl=5) as locks:
        lease = await locks.lock("example:nightly-report").try_acquire()
        if lease is None:
            print("not here: another machine is at it", flush=True)
            return
        async with lease:
            await asyncio.sleep(2)  # the work
            print("the nightly report is ready", flush=True)


def machine(redis_url: str, two_o_clock: Barrier) -> None:
    two_o_clock.wait()
    asyncio.run(nightly_report(redis_url))


def main(redis_url: str = "redis://localhost") -> None:
    spawn = multiprocessing.get_context("spawn")
    two_o_clock = spawn.Barrier(3)
    machines = [spawn.Process(target=machine, args=(redis_url, two_o_clock)) for _ in range(3)]
    for process in machines:
        process.start()
    for process in machines:
        process.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
