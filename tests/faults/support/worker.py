"""Worker processes of the fault tests: `python -m tests.faults.support.worker ROLE URL NAME TTL LOG …`.

They are killed and stopped from outside; what they did is in the log. A line on standard output says they are ready.
"""

import asyncio
import os
import random
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

import redis
from redis.asyncio import Redis

from aiolocks import Lease, LeaseLostError, Lock, LockManager, MultiLock, Semaphore
from aiolocks.testing import Recorder
from tests.faults.support.resource import write
from tests.support.inside import session_id
from tests.support.workers import ACQUIRED, LOST, RELEASED


async def wait(client: Redis, name: str, ttl: float, log: Recorder, count: str, work: str, forking: str = "") -> None:
    """Have *count* tasks ask for one lock, one after the other, each to work for *work* seconds once it has it."""
    lock = Lock(client, name, ttl=ttl)

    async def take_a_turn(number: int) -> None:
        async with lock as lease:
            log.record(ACQUIRED, lease)
            log.record(f"turn {number}", lease)
            await asyncio.sleep(float(work))
            log.record(RELEASED, lease)

    tasks = []
    for number in range(int(count)):
        tasks.append(asyncio.create_task(take_a_turn(number)))
        await asyncio.sleep(0.02)  # the processes of a test ask by turns
    if forking == "fork":
        channel = f"aiolocks:wake:{session_id(client)}"
        while not (await client.pubsub_numsub(channel))[0][1]:
            await asyncio.sleep(0.01)
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        print("forked", flush=True)
    await asyncio.gather(*tasks)


async def write_after_a_stop(client: Redis, name: str, ttl: float, log: Recorder) -> None:
    """Check the lease, be stopped before the write that follows, write all the same, and check again."""
    with redis.Redis.from_url(sys.argv[2]) as resource:
        try:
            async with Lock(client, name, ttl=ttl) as lease:
                write(resource, lease.fencing_token)
                lease.check()
                print("held", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
                print("accepted" if write(resource, lease.fencing_token) else "refused", flush=True)
                lease.check()
                print("held", flush=True)
        except LeaseLostError:
            print("lost", flush=True)


async def share(client: Redis, name: str, ttl: float, log: Recorder, limit: str) -> None:
    """Take and give back a permit until killed."""
    semaphore = Semaphore(client, name, int(limit), ttl=ttl)
    while True:
        try:
            async with semaphore as lease:
                log.record(ACQUIRED, lease)
                try:
                    await asyncio.sleep(random.uniform(0.01, 0.1))
                finally:
                    log.record(RELEASED, lease)
        except LeaseLostError:
            pass


async def take_many(client: Redis, name: str, ttl: float, log: Recorder, count: str, seconds: str, seed: str) -> None:
    """For so many seconds, take random ones of *count* names together, in random order."""
    dice = random.Random(seed)
    names = [f"{name} {number}" for number in range(int(count))]
    ends_at = time.monotonic() + float(seconds)
    while time.monotonic() < ends_at:
        chosen = dice.sample(names, dice.randint(1, len(names)))
        lease = await MultiLock(client, chosen, ttl=ttl).acquire(timeout=10)
        parts: list[Any] = [
            SimpleNamespace(name=each, token=lease.token, fencing_token=fence)
            for each, fence in lease.fencing_tokens.items()
        ]
        for part in parts:
            log.record(ACQUIRED, part)
        await asyncio.sleep(dice.uniform(0.0, 0.004))
        for part in parts:
            log.record(RELEASED, part)
        await lease.release()


async def stop_when_told(client: Redis, name: str, ttl: float, log: Recorder) -> None:
    """Hold until revoked, again and again until killed; a while after it is told it is inside still, to clean up."""
    lease: Lease | None = None
    while True:
        try:
            async with Lock(client, name, ttl=ttl) as lease:
                log.record(ACQUIRED, lease)
                try:
                    await asyncio.Event().wait()
                finally:
                    try:
                        await asyncio.sleep(random.uniform(0.0, 0.05))
                    finally:
                        log.record(RELEASED, lease)
        except LeaseLostError as lost:
            assert lease is not None  # only a block raises this
            log.record(str(lost.reason), lease)


async def stand(client: Redis, name: str, ttl: float, log: Recorder) -> None:
    """Stand in an election, until killed."""

    async def lead(lease: Lease) -> None:
        until_ns = time.monotonic_ns()
        log.record(ACQUIRED, lease)
        try:
            while True:
                left = lease.remaining()
                if left:  # a process that is stopped does not lead meanwhile, though it notices the end only afterwards
                    until_ns = time.monotonic_ns() + round(left * 1e9)
                await asyncio.sleep(0.02)
        finally:
            now_ns = time.monotonic_ns()
            log.record(RELEASED if lease.held else LOST, lease, at_ns=min(now_ns, until_ns))

    async with LockManager.from_url(sys.argv[2], ttl=ttl) as locks:
        await locks.election(name).run(lead)
    print("stands no more", flush=True)


ROLES = {
    "wait": wait, "write": write_after_a_stop, "share": share, "several": take_many, "stop": stop_when_told,
    "stand": stand,
}  # fmt: skip


async def main(role: str, url: str, name: str, ttl: str, log: str, *more: str) -> None:
    async with Redis.from_url(url) as client:
        if role not in ("wait", "write"):  # which say something else when they are ready
            await client.ping()
            print("up", flush=True)
        await ROLES[role](client, name, float(ttl), Recorder(log), *more)  # type: ignore[operator]  # as each role says


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
