"""Run at most two jobs of a kind at once in taskiq, in the whole fleet; the others wait for a permit.

    python examples/taskiq_jobs.py

prints (on redis://localhost, or the Redis whose URL you append)

    6 reports are made, at most 2 at once

A job that waits takes one of its worker's places; to give it back, ask with `hold(timeout=0)` and retry the job later.
"""

import asyncio
import sys

from taskiq import Context, InMemoryBroker, TaskiqDepends, TaskiqEvents, TaskiqState

from aiolocks import LockManager

broker = InMemoryBroker()  # in a real program, one that workers on many machines share
at_once: list[int] = []
running = 0


@broker.task
async def report(context: Context = TaskiqDepends()) -> None:
    global running
    async with context.state.locks.semaphore("example:reports", 2):
        running += 1
        at_once.append(running)
        await asyncio.sleep(0.1)  # the work
        running -= 1


async def main(redis_url: str = "redis://localhost") -> None:
    async def open_locks(state: TaskiqState) -> None:
        state.locks = LockManager.from_url(redis_url, ttl=10)

    async def close_locks(state: TaskiqState) -> None:
        await state.locks.aclose()

    broker.add_event_handler(TaskiqEvents.WORKER_STARTUP, open_locks)
    broker.add_event_handler(TaskiqEvents.WORKER_SHUTDOWN, close_locks)
    await broker.startup()
    jobs = [await report.kiq() for _ in range(6)]
    for job in jobs:
        (await job.wait_result(timeout=10)).raise_for_error()
    await broker.shutdown()
    print(f"{len(at_once)} reports are made, at most {max(at_once)} at once")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
