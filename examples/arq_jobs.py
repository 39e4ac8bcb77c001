"""arq: skip a job while the same job is running on any worker.

    python examples/arq_jobs.py

prints (on redis://localhost, or the Redis whose URL you append)

    1 import is done, 2 are skipped

arq 0.28 declares redis<6, so it cannot be installed beside aiolocks by name; this program was tried with redis-py 8.1
and `pip install --no-deps arq && pip install click`.
"""

import asyncio
import sys
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from aiolocks import LockManager


async def fetch(context: dict[str, Any], shop: str) -> str:
    lease = await context["locks"].lock(f"example:import:{shop}").try_acquire()
    if lease is None:
        return "skipped"  # or raise arq.Retry(defer=5): later
    async with lease:
        await asyncio.sleep(1)  # the work
        return "done"


async def main(redis_url: str = "redis://localhost") -> None:
    async def start(context: dict[str, Any]) -> None:
        context["locks"] = LockManager.from_url(redis_url, ttl=10)

    async def stop(context: dict[str, Any]) -> None:
        await context["locks"].aclose()

    queue = await create_pool(RedisSettings.from_dsn(redis_url))
    jobs = [await queue.enqueue_job("fetch", "books") for _ in range(3)]
    worker = Worker([fetch], redis_pool=queue, burst=True, on_startup=start, on_shutdown=stop, handle_signals=False)
    await worker.async_run()
    results = [await job.result(timeout=10) for job in jobs if job is not None]
    await worker.close()
    print(results.count("done"), "import is done,", results.count("skipped"), "are skipped")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
