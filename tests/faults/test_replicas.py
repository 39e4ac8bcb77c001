"""`replicas`: a lease is had only when so many replicas have it, and whoever cannot have it leaves nothing behind."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import HierarchicalLock, Lock, MultiLock, RWLock
from tests.support.lateness import SLACK, in_time
from tests.support.leftovers import Leftovers, tasks_beyond, wait_until_none
from tests.support.primitives import EVERY_ROW, Row, free, queued
from tests.support.replicas import Replicated, replicated

each_kind = pytest.mark.parametrize("row", [row for row in EVERY_ROW if row.id != "redlock"], ids=str)
"""Of one server: a Redlock's are independent, and have no replicas."""

BOUND = 0.2
"""Seconds that a short wait takes here; others take a second."""


@pytest.fixture(scope="module")
def running() -> Iterator[Replicated]:
    with replicated() as servers:
        yield servers


@pytest.fixture
def pair(running: Replicated) -> Replicated:
    running.primary.flush()
    running.catch_up()
    return running


@pytest_asyncio.fixture
async def client(pair: Replicated) -> AsyncIterator[Redis]:
    """A client of the primary."""
    async with Redis.from_url(pair.primary.url) as made:
        yield made


async def contents(client: Any) -> dict[bytes, object]:
    """Return all there is, by key. Of a hash, its fields: their order in a dump is each server's own."""
    return {
        key: await client.hgetall(key) if await client.type(key) == b"hash" else await client.dump(key)
        for key in await client.keys("*")
    }


async def nothing_held(client: Redis, row: Row, name: str) -> bool:
    """Whether somebody else gets it at once, with all that belongs to it."""
    rest = HierarchicalLock(client, "shop").write if row.id == "row of a table" else row.make(client, name)
    lease = await rest.try_acquire()
    return lease is not None and await lease.release()


@each_kind
async def test_a_lease_is_not_had_before_the_replica_has_it_and_nothing_stays(pair: Replicated, row: Row) -> None:
    tasks, leftovers = asyncio.all_tasks(), Leftovers(pair.primary)
    async with Redis.from_url(pair.primary.url) as client, Redis.from_url(pair.replica.url) as replica:
        lock = row.make(client, "late", replicas=1)
        with pair.standing_still():
            taking = asyncio.create_task(lock.acquire())
            async with asyncio.timeout(5):
                while not (await lock.statistics()).holders:
                    await asyncio.sleep(0.01)
            assert not (await asyncio.wait([taking], timeout=BOUND / 2))[0]
        lease = await taking
        there = await contents(replica)
        assert there
        assert there == await contents(client)
        await lease.release()
    assert await wait_until_none(leftovers.new_connections, lambda: tasks_beyond(tasks)) == []


@pytest.mark.parametrize("share", ["majority", "all"])
async def test_a_share_of_the_replicas_counts_the_connected_replicas(
    pair: Replicated, client: Redis, share: Literal["majority", "all"]
) -> None:
    async with Redis.from_url(pair.replica.url) as replica:
        lock = Lock(client, "shared", replicas=share, ttl=3)
        async with lock:
            assert await contents(replica) == await contents(client)
        with pair.standing_still():
            with pytest.raises(RedisTimeoutError, match=r"0 of 1 replicas had it within 0\.75 s"):
                await lock.acquire()
            assert await Lock(client, "shared").locked() is False
            with pytest.raises(RedisTimeoutError, match=f"on {'most' if share == 'majority' else 'all'} replicas"):
                await lock.acquire(timeout=BOUND)
        with pytest.raises(RedisConnectionError, match="READONLY"):  # it is asked as if it were the primary
            await Lock(replica, "shared", replicas=share).acquire(timeout=BOUND)


@pytest.mark.parametrize("share", ["majority", "all"])
async def test_where_no_replica_is_connected_none_is_awaited(redis: Redis, share: Literal["majority", "all"]) -> None:
    async with Lock(redis, "alone", replicas=share) as lease:
        assert lease.held


@each_kind
async def test_a_lease_that_the_replica_does_not_get_is_undone_with_all_that_belongs_to_it(
    pair: Replicated, client: Redis, row: Row
) -> None:
    lock = row.make(client, "never", replicas=1, ttl=3)
    with pair.standing_still():
        with pytest.raises(RedisTimeoutError, match=r"0 of 1 replicas had it within 0\.75 s"):
            await lock.acquire()
        assert await nothing_held(client, row, "never")
    async with lock:
        pass
    assert await nothing_held(client, row, "never")


@each_kind
async def test_replicas_are_awaited_no_longer_than_the_caller_waits(pair: Replicated, client: Redis, row: Row) -> None:
    lock = row.make(client, "in time", replicas=1, ttl=30)
    async with lock:
        pass  # connected
    with pair.standing_still():
        begun = time.monotonic()
        async with in_time(BOUND + SLACK * 0.15):
            with pytest.raises(RedisTimeoutError, match=f"not known to be on 1 replicas after {BOUND:g} s"):
                await lock.acquire(timeout=BOUND)
        assert time.monotonic() - begun >= BOUND
        assert await nothing_held(client, row, "in time")


async def test_a_part_handed_over_is_not_had_before_the_replica_has_it_and_is_undone_with_the_others(
    pair: Replicated, client: Redis
) -> None:
    holding = await MultiLock(client, ["b"]).acquire()
    several = MultiLock(client, ["a", "b", "c"], replicas=1, ttl=2)
    taking = asyncio.create_task(several.acquire())
    await queued(several, 1)
    with pair.standing_still():
        await holding.release()
        with pytest.raises(RedisTimeoutError, match="0 of 1 replicas"):
            await taking
        assert not await several.locked()


async def test_an_upgrade_that_no_replica_gets_leaves_the_lease_as_it_was(pair: Replicated, client: Redis) -> None:
    async def reader_admitted() -> bool:
        lease = await RWLock(client, "upgraded").read.try_acquire()
        return lease is not None and await lease.release()

    async with RWLock(client, "upgraded", replicas=1, ttl=2).upgradeable as lease:
        with pair.standing_still():
            with pytest.raises(RedisTimeoutError, match="0 of 1 replicas"):
                async with lease.upgrade():
                    raise AssertionError("no replica has it")
            assert await asyncio.create_task(reader_admitted())
        async with lease.upgrade():
            assert not await asyncio.create_task(reader_admitted())


async def test_a_caller_that_waits_for_a_missing_replica_delays_no_other(pair: Replicated, client: Redis) -> None:
    async with Lock(client, "connected", replicas=1):
        pass
    waiting = [
        asyncio.create_task(Lock(client, f"too many {number}", replicas=2, ttl=30).acquire()) for number in (1, 2)
    ]
    async with in_time(BOUND + SLACK * 0.15):
        lease = await Lock(client, "orders", replicas=1, ttl=30).acquire()
    await lease.release()
    for task in waiting:
        with pytest.raises(RedisTimeoutError, match="1 of 2 replicas had it within 1 s"):
            await task


async def test_a_caller_that_gives_up_waiting_for_replicas_leaves_nothing_held(pair: Replicated, client: Redis) -> None:
    lock = Lock(client, "given up", replicas=1, ttl=30)
    with pair.standing_still():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await lock.acquire()
        await free(lock)
        with pytest.raises(RedisTimeoutError, match="0 of 1 replicas"):
            await lock.acquire()
        assert not await lock.locked()
    async with lock:
        pass
