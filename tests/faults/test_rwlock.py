"""A read-write lock under many hands and under faults: writers are alone, nobody starves, lost replies do no harm.

`AIOLOCKS_RW_SECONDS=20` runs the crowd for that long, as every night; else for a few seconds.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import RWLock
from aiolocks.testing import FaultProxy, check_exclusion, read_history
from tests.faults.support.asking import retrying
from tests.faults.support.residue import wait_until_only_residue
from tests.support.primitives import queued
from tests.support.workers import ALONE, spawn

pytestmark = [pytest.mark.redis, pytest.mark.faults]

SECONDS = float(os.environ.get("AIOLOCKS_RW_SECONDS", "3"))
CROWD = [(25, 1), (25, 1), (25, 1), (25, 2)]
"""Readers and writers of each process."""

KEY = b"aiolocks:readwrite:{once}"
either_loss = pytest.mark.parametrize("how", ["reset", "black_hole"])
Loss = Literal["reset", "black_hole"]


def p99(waits: list[float]) -> float:
    return sorted(waits)[int(0.99 * len(waits))]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_hundred_readers_and_five_writers_in_four_processes(redis_url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ExitStack() as stack:
        processes = []
        for readers, writers in CROWD:
            rest = [str(readers), str(writers), str(SECONDS)]
            command = ["-m", "tests.faults.support.worker", "read and write", redis_url, "crowd", "5", str(log), *rest]
            processes.append(stack.enter_context(spawn(*command)))
        assert [process.wait(60 + SECONDS) for process in processes] == [0] * len(CROWD)

    records = read_history(log)
    waits: dict[str, list[float]] = {"read": [], "write": []}
    for record in records:
        mode, _, waited_ms = record.event.partition(" ")
        if waited_ms:
            waits[mode].append(float(waited_ms))
    by_readers = [record for record in records if record.permits == 1]
    fences = [record.fence for record in records if record.event == "acquired"]
    p99s = {mode: p99(waits[mode]) for mode in waits}
    print(
        f"{SECONDS:g} s: {len(waits['read'])} reads, {len(waits['write'])} writes; waits p99 {p99s['read']:.0f} and "
        f"{p99s['write']:.0f} ms"
    )
    assert not check_exclusion(records, ALONE), "a writer was inside beside another task"
    assert len(set(fences)) == len(fences)
    assert check_exclusion(by_readers, 19), "twenty readers were inside together"
    assert 1 / 3 <= p99s["write"] / p99s["read"] <= 3


@pytest_asyncio.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Redis]:
    """A client through the proxy that retries."""
    async with retrying(proxy) as through_proxy:
        yield through_proxy


@pytest.mark.asyncio
@either_loss
@pytest.mark.parametrize("mode", ["read", "upgradeable", "write"])
async def test_a_lease_whose_grant_is_lost_is_granted_once(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, mode: str
) -> None:
    proxy.drop_next_reply(KEY, how)
    lease = await getattr(RWLock(client, "once", ttl=20), mode).acquire()
    now = await RWLock(redis, "once").read.statistics()
    assert (now.holders, now.waiting, now.fencing_token) == (1, 0, lease.fencing_token)
    assert await lease.release()
    assert await redis.zcard(KEY) == 0


@pytest.mark.asyncio
@either_loss
async def test_an_upgrade_whose_grant_is_lost_is_granted_once(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    async with RWLock(client, "once", ttl=20).upgradeable as lease:
        proxy.drop_next_reply(KEY, how)
        async with lease.upgrade() as alone:
            now = await RWLock(redis, "once").read.statistics()
            assert (now.holders, now.waiting, now.fencing_token) == (2, 0, alone.fencing_token)
        assert await redis.zcard(KEY) == 1


@pytest.mark.asyncio
@either_loss
async def test_an_upgrade_that_is_undone_before_it_arrives_is_never_granted(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    async with RWLock(client, "once", ttl=20).upgradeable as lease:
        proxy.drop_next_reply(KEY, how)
        upgrading = asyncio.create_task(lease.upgrade().__aenter__())
        await asyncio.sleep(0)
        upgrading.cancel()
        await asyncio.wait([upgrading])
        async with RWLock(redis, "once").read.hold(timeout=5):
            assert lease.held
    await wait_until_only_residue(redis, within=5)


@pytest.mark.asyncio
@either_loss
async def test_a_downgrade_whose_answer_is_lost_is_asked_for_again(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    async with RWLock(client, "once", ttl=20).write as lease:
        reader = asyncio.create_task(RWLock(redis, "once").read.acquire())
        await queued(RWLock(redis, "once").read, 1)
        proxy.drop_next_reply(KEY, how)
        async with asyncio.timeout(5):
            await lease.downgrade()
        await (await reader).release()
        assert lease.held
