"""Other ways to run a program: one client and lock in threads with a loop each, and Python without its asserts."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest
from redis.asyncio import Redis

from aiolocks import Lock
from tests.support.clients import client_at

THREADS, TURNS = 4, 25

WITHOUT_ASSERTS = """
import asyncio
from aiolocks import LeaseLostError, LockManager

async def main():
    async with LockManager.from_url("memory://") as locks:
        lock = locks.lock("orders")
        async with lock as lease:
            print(lease.held, await locks.lock("orders").try_acquire())
        try:
            async with locks.lock("orders", ttl=0.1, max_hold=0.1):
                await asyncio.sleep(60)
        except LeaseLostError:
            print("stopped")

asyncio.run(main())
"""


@pytest.mark.redis
def test_one_client_and_one_lock_serve_threads_with_a_loop_each(redis_url: str) -> None:
    client: Redis = client_at(redis_url)
    lock = Lock(client, "orders")
    inside = []
    most, turns = 0, 0

    async def work() -> None:
        nonlocal most, turns
        for _ in range(TURNS):
            async with lock:
                inside.append(threading.get_ident())
                most, turns = max(most, len(inside)), turns + 1
                await asyncio.sleep(0)
                inside.pop()

    threads = [threading.Thread(target=asyncio.run, args=(work(),)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, turns) == (1, THREADS * TURNS)


def test_what_a_lock_promises_does_not_hang_on_asserts() -> None:
    program = [sys.executable, "-OO", "-c", WITHOUT_ASSERTS]
    said = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True, env=os.environ)
    assert said.stdout.split() == ["True", "None", "stopped"]
