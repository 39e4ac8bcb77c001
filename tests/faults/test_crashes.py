"""Processes that are killed or stopped, as holders and as waiters: nobody else pays more than one lease for it."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Semaphore
from aiolocks.testing import check_exclusion, read_history
from tests.faults.support.asking import granted_at, wait_until_listening
from tests.faults.support.kinds import Kind, make
from tests.faults.support.resource import check_bitten, write
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.primitives import queued
from tests.support.workers import Worker, holding, spawn

TTL = 1.0

Start = Callable[..., Worker]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file that all workers of a test write."""
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def start(redis_url: str, log: Path) -> Iterator[Start]:
    """Starts workers: `start(role, name, …)`; see `support.worker`."""
    program = ("-m", "tests.faults.support.worker")
    with ExitStack() as stack:
        yield lambda role, name, *more: stack.enter_context(
            spawn(*program, role, redis_url, name, str(TTL), log, *map(str, more))
        )


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_the_next_waiter_follows_a_killed_holder_within_its_ttl(redis: Redis, redis_url: str, kind: Kind) -> None:
    """F8: SIGKILL of the holder."""
    made = f"locks.lock('orphaned', ttl={TTL})" if kind is Lock else f"locks.semaphore('orphaned', 1, ttl={TTL})"
    mine = make(kind, redis, "orphaned", ttl=TTL)
    with holding(redis_url, made) as holder:
        assert await holder.says() == "holds"
        async with measured_lag() as lag:
            waiting = asyncio.create_task(granted_at(mine))
            await queued(mine, 1)
            await asyncio.sleep(0.6 * TTL)  # it has been renewed
            assert not waiting.done()
            holder.process.kill()
            killed_at = time.monotonic()
            took = await waiting - killed_at
    print(f"{kind.__name__}: granted {took:.3f} s after the holder was killed; loop lag up to {lag.worst:.3f} s")
    assert_within(took, TTL + SLACK * 0.2 + lag.worst)


@pytest.mark.slow
@pytest.mark.parametrize("forking", ["", "fork"])
async def test_ten_dead_waiters_hardly_delay_the_next(redis: Redis, another: Redis, start: Start, forking: str) -> None:
    """F8: also when a child that they forked lives on, with copies of their connections."""
    lock = Lock(redis, "haunted", ttl=10)  # so long that a re-check would come too late
    async with measured_lag() as lag:
        async with lock:
            dead = [start("wait", "haunted", 1, 60, forking) for _ in range(10)]
            if forking:
                assert [await worker.says() for worker in dead] == ["forked"] * 10
            await queued(lock, 10)
            living = asyncio.create_task(granted_at(Lock(another, "haunted", ttl=10)))
            await queued(lock, 11)
            await wait_until_listening(redis, 11)
            for worker in dead:
                worker.kill()
            await wait_until_listening(redis, 1)
            assert not living.done()
            freed_at = time.monotonic()
        took = await living - freed_at
    print(f"ten killed waiters {forking} cost {took:.3f} s; loop lag up to {lag.worst:.3f} s")
    assert_within(took, SLACK * 0.1 + lag.worst)


async def test_a_stopped_process_with_ten_waiters_costs_one_lease_in_all(
    redis: Redis, another: Redis, log: Path, start: Start
) -> None:
    """F8: SIGSTOP of waiters."""
    lock = Lock(redis, "frozen", ttl=TTL)
    async with measured_lag() as lag:
        async with lock:
            frozen = start("wait", "frozen", 10, 0.01)
            await queued(lock, 10)
            await wait_until_listening(redis, 1)
            frozen.stop()
            living = asyncio.create_task(granted_at(Lock(another, "frozen", ttl=TTL)))
            await wait_until_listening(redis, 2)
            freed_at = time.monotonic()
        took = await living - freed_at
        frozen.go_on()
        assert await frozen.ends(10) == 0
    print(f"cost {took:.3f} s; loop lag up to {lag.worst:.3f} s")
    assert_within(took, TTL + SLACK * 0.2 + lag.worst)
    records = read_history(log)
    turns = [record.event for record in records if record.event.startswith("turn ")]
    assert sorted(turns) == [f"turn {n}" for n in range(10)]
    turns.remove("turn 0")  # it was handed the lease while it was stopped, and asks anew when it has seen that
    assert turns == sorted(turns)
    assert check_exclusion(records) == []


async def test_a_holder_stopped_for_two_ttls_is_lost_and_its_write_is_refused(redis: Redis, start: Start) -> None:
    """F7: SIGSTOP between its check and its write."""
    writer = start("write", "stopped")
    assert await writer.says() == "held"
    await asyncio.to_thread(writer.wait_until_stopped)
    stopped_at = time.monotonic()
    async with Lock(redis, "stopped", ttl=TTL) as lease:
        assert await write(redis, lease.fencing_token) == 1
        await asyncio.sleep(stopped_at + 2 * TTL - time.monotonic())
        writer.go_on()
        assert [await writer.says(), await writer.says()] == ["refused", "lost"]
        assert await write(redis, lease.fencing_token) == 1
    await check_bitten(redis)
    assert await writer.ends(10) == 0
