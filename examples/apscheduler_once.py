"""Start an APScheduler on each machine, and do each scheduled run once: the first machine does it.

    python examples/apscheduler_once.py

prints (on redis://localhost, or the Redis whose URL you append)

    the report of 02:00 is made once
    the report of 03:00 is made once

The record is written only while the lock is held. A machine that dies before it leaves the run to another one, so the
work may then be done twice; that is safer than not at all.
"""

import asyncio
import sys
from collections import Counter
from datetime import datetime

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from aiolocks import LockManager

made: Counter[str] = Counter()


async def report(locks: LockManager, run: str) -> None:
    record = f"example:report:{run}:done"  # the run's own time, the same on all machines
    async with locks.lock(f"example:report:{run}") as lease:
        if not await locks.client.exists(record):
            await asyncio.sleep(0.1)  # the work
            made[run] += 1
            await lease.guard(("SET", record, "1", "EX", 86400))


async def main(redis_url: str = "redis://localhost") -> None:
    async with LockManager.from_url(redis_url, ttl=10) as locks:
        await locks.client.delete("example:report:02:00:done", "example:report:03:00:done")
        machines = [AsyncIOScheduler(job_defaults={"misfire_grace_time": 60}) for _ in range(3)]
        for scheduler in machines:
            for run in ("02:00", "03:00"):  # in a real program: "cron", hour=2, args=[locks, …]
                scheduler.add_job(report, "date", run_date=datetime.now().astimezone(), args=[locks, run])
            scheduler.start()
        await asyncio.sleep(2)
        for scheduler in machines:
            scheduler.shutdown()
    for run in sorted(made):
        print("the report of", run, "is made", "once" if made[run] == 1 else f"{made[run]} times")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
