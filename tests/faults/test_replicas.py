"""`replicas`: a lease is had only when so many replicas have it, and whoever cannot have it leaves nothing behind."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import Lock, Semaphore
from tests.support.leftovers import Leftovers, tasks_beyond, wait_until_none
from tests.support.replicas import Replicated, replicated

pytestmark = [pytest.mark.redis, pytest.mark.faults]


@pytest.fixture(scope="module")
def pair() -> Iterator[Replicated]:
    with replicated() as servers:
        yield servers


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_the_replica_has_a_lease_from_the_moment_that_it_is_had_and_nothing_stays_behind(
    pair: Replicated, kind: type[Lock] | type[Semaphore]
) -> None:
    pair.primary.flush()
    pair.catch_up()
    tasks, leftovers = asyncio.all_tasks(), Leftovers(pair.primary)
    async with Redis.from_url(pair.primary.url) as client, Redis.from_url(pair.replica.url) as replica:
        for number in range(20):
            name = f"orders:{number}"
            lock = Lock(client, name, replicas=1) if kind is Lock else Semaphore(client, name, 1, replicas=1)
            async with lock as lease:
                key = f"aiolocks:{lock.kind}:{{{name}}}"
                value: Any = await (replica.get(key) if kind is Lock else replica.zrange(key, 0, -1))
                assert lease.token.encode() in (value.split() if isinstance(value, bytes) else value)
    assert await wait_until_none(leftovers.new_connections, lambda: tasks_beyond(tasks)) == []
    leftovers.close()


@pytest.mark.asyncio
async def test_one_who_gives_up_while_replicas_are_waited_for_leaves_nothing_held(pair: Replicated) -> None:
    async with Redis.from_url(pair.primary.url) as client:
        lock = Lock(client, "given up", replicas=1, ttl=30)
        with pair.standing_still():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await lock.acquire()
            async with asyncio.timeout(5):
                while await lock.locked():
                    await asyncio.sleep(0.01)
            with pytest.raises(RedisTimeoutError, match="0 of 1 replicas"):
                await lock.acquire()
            assert not await lock.locked()
        async with lock:
            pass


@pytest.mark.asyncio
async def test_more_replicas_than_there_are_cannot_be_had(pair: Replicated) -> None:
    async with Redis.from_url(pair.primary.url) as client:
        with pytest.raises(RedisTimeoutError, match="1 of 2 replicas"):
            async with Lock(client, "too many", replicas=2, ttl=1):
                raise AssertionError("there is one replica only")
        async with Lock(client, "too many", replicas=1, ttl=1):
            pass
