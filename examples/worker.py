"""Share jobs between processes: each is done by one, and taken over by another if that one is killed.

    python examples/worker.py

prints, the first two lines in either order (on redis://localhost, or the Redis whose URL you append),

    ann begins invoice
    ann begins report
    ann has done invoice
    ann is killed
    bob begins report
    bob has done report
"""

import asyncio
import multiprocessing
import sys

from redis import Redis

from aiolocks import LockManager

JOBS = {"invoice": 0.5, "report": 2.0}  # seconds of work


async def do(job: str, worker: str, locks: LockManager) -> None:
    async with locks.lock(f"example:job:{job}"):
        if await locks.client.sismember("example:open-jobs", job):
            print(worker, "begins", job, flush=True)
            await asyncio.sleep(JOBS[job])
            print(worker, "has done", job, flush=True)
            await locks.client.srem("example:open-jobs", job)


async def work(redis_url: str, worker: str) -> None:
    async with LockManager.from_url(redis_url, ttl=2) as locks:  # 2 s after it died, a worker's jobs are free
        await asyncio.gather(*(do(job, worker, locks) for job in JOBS))


def start(redis_url: str, worker: str) -> None:
    asyncio.run(work(redis_url, worker))


def main(redis_url: str = "redis://localhost") -> None:
    spawn = multiprocessing.get_context("spawn")
    ann, bob = (spawn.Process(target=start, args=(redis_url, worker)) for worker in ("ann", "bob"))
    with Redis.from_url(redis_url) as redis:
        redis.sadd("example:open-jobs", *JOBS)
        ann.start()
        while ann.is_alive() and redis.sismember("example:open-jobs", "invoice"):
            ann.join(0.01)
    bob.start()
    ann.kill()
    print("ann is killed", flush=True)
    bob.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
