"""Metrics of locks for Prometheus: who waits, for how long, and what is held or lost.

    python examples/prometheus.py

prints (on redis://localhost, or the Redis whose URL you append) some of what a server would show at /metrics

    lock_acquisitions_total{kind="acquired",name="report"} 3.0
    lock_acquisitions_total{kind="timed_out",name="report"} 1.0
    lock_wait_seconds_count{name="report"} 4.0
    lock_held{name="report"} 0.0
    lock_lost_total{name="report"} 0.0
"""

import asyncio
import sys
from contextlib import suppress

from prometheus_client import Counter, Gauge, Histogram, generate_latest

from aiolocks import AcquireTimeoutError, LockManager
from aiolocks.events import Event, on_event

ACQUISITIONS = Counter("lock_acquisitions", "How they ended", ["name", "kind"])
WAIT = Histogram("lock_wait_seconds", "From asking to the lease", ["name"], buckets=(0.01, 0.1, 1, 10, 60))
HELD = Gauge("lock_held", "Leases that are held now", ["name"])
LOST = Counter("lock_lost", "Leases that ended before they were released", ["name"])


def measure(event: Event) -> None:
    name = event.name.partition(":")[0]  # "report:1" and "report:2" are one series
    if event.kind in ("acquired", "timed_out", "cancelled", "failed"):
        ACQUISITIONS.labels(name, event.kind).inc()
        WAIT.labels(name).observe(event.seconds)
        HELD.labels(name).inc(event.kind == "acquired")
    elif event.kind in ("released", "lost", "revoked"):
        HELD.labels(name).dec()
        LOST.labels(name).inc(event.kind != "released")


async def main(redis_url: str = "redis://localhost") -> None:
    on_event(measure)
    async with LockManager.from_url(redis_url, ttl=5) as locks:
        for number in range(2):
            async with locks.lock(f"report:{number}"):
                pass
        lease = await locks.lock("report:3").acquire()
        with suppress(AcquireTimeoutError):
            await locks.lock("report:3").acquire(timeout=0.1)
        await lease.release()
    shown = [line for line in generate_latest().decode().splitlines() if line.startswith("lock_")]
    for metric in ("lock_acquisitions_total", "lock_wait_seconds_count", "lock_held", "lock_lost_total"):
        print(*(line for line in shown if line.startswith(metric)), sep="\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
