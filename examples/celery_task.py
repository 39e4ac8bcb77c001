"""Import each shop in one Celery task at a time: while one worker process imports it, a second task is retried later.

    python examples/celery_task.py

prints (on redis://localhost, or the Redis whose URL you append)

    4 imports are done, never two of one shop at once

It needs `celery[redis]`. The workers are processes that Celery forks (its prefork pool). Each begins an event loop of
its own at its first lock, so the manager is made once, at import time.
"""

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from celery import Celery, group

from aiolocks import AcquireTimeoutError
from aiolocks.sync import LockManager

url = os.environ.setdefault("REDIS_URL", *sys.argv[1:2] or ["redis://localhost"])
app = Celery("celery_task", broker=url, backend=url, broker_connection_retry_on_startup=True)
locks = LockManager.from_url(url, ttl=10)


@app.task(bind=True, max_retries=100)
def import_shop(self: Any, shop: str) -> tuple[str, float, float]:
    try:
        with locks.lock(f"example:import:{shop}").hold(timeout=0) as lease:
            begun = time.time()
            time.sleep(0.3)  # the work
            lease.check()  # before it is written: not after a loss, which cannot stop a process
            return shop, begun, time.time()
    except AcquireTimeoutError as busy:
        raise self.retry(exc=busy, countdown=0.2) from busy  # frees this worker for other tasks


def main() -> None:
    worker = [sys.executable, "-m", "celery", "-A", "celery_task", "worker", "--concurrency=3", "--loglevel=ERROR"]
    with subprocess.Popen(worker, cwd=Path(__file__).parent, stdout=subprocess.DEVNULL) as process:
        tasks = group(import_shop.s(shop) for shop in ("books", "books", "books", "shoes"))
        done = sorted(tasks().get(timeout=30))
        process.terminate()
    overlaps = [now for now, then in pairwise(done) if now[0] == then[0] and now[2] > then[1]]
    print(len(done), "imports are done,", f"{len(overlaps)} at once" if overlaps else "never two of one shop at once")


if __name__ == "__main__":
    main()
