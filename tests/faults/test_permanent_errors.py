"""An error that asking again does not change reaches its caller at once, and is not ridden out like an outage."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import HierarchicalLock, Lock, MultiLock, Redlock, Semaphore
from aiolocks.compat import RedisLock
from tests.support.lateness import SLACK, bounded, in_time
from tests.support.servers import RedisServer

pytestmark = pytest.mark.leaves_residue

WRONG_TYPE = r"WRONGTYPE|wrong kind"

AT_ONCE = SLACK * 0.25
"""Seconds: less than the second that an undo after a failure may take, and far less than the 10 s of an outage."""


async def put_a_list_at(redis: Redis, key: str) -> None:
    await redis.delete(key)
    await redis.rpush(key, "one")


HELD: dict[str, tuple[Callable[[Redis], Any], str]] = {
    "lock": (lambda redis: Lock(redis, "orders:42"), "aiolocks:lock:{orders:42}"),
    "semaphore": (lambda redis: Semaphore(redis, "orders:42", 2), "aiolocks:semaphore:{orders:42}"),
    "redis-py's lock": (lambda redis: RedisLock(redis, "orders:42", timeout=10), "orders:42"),
}


@pytest.mark.parametrize("kind", HELD)
async def test_a_release_by_hand_of_a_key_of_another_type_raises_at_once(kind: str, redis: Redis) -> None:
    make, key = HELD[kind]
    lock = make(redis)
    held = await lock.acquire()
    await put_a_list_at(redis, key)
    async with in_time(AT_ONCE):
        with pytest.raises(ResponseError, match=WRONG_TYPE):
            await (lock if held is True else held).release()
    await redis.delete(key)


ACQUIRES: dict[str, tuple[Callable[[Redis], Awaitable[object]], str]] = {
    "acquire": (lambda redis: Lock(redis, "orders:42").acquire(), "aiolocks:lock:{orders:42}"),
    "try_acquire": (lambda redis: Lock(redis, "orders:42").try_acquire(), "aiolocks:lock:{orders:42}"),
    "redis-py's lock": (lambda redis: RedisLock(redis, "orders:42").acquire(blocking=False), "orders:42"),
}


@pytest.mark.parametrize("how", ACQUIRES)
async def test_an_acquire_of_a_key_of_another_type_raises_at_once(how: str, redis: Redis) -> None:
    acquire, key = ACQUIRES[how]
    await put_a_list_at(redis, key)
    async with in_time(AT_ONCE):
        with pytest.raises(ResponseError, match=WRONG_TYPE):
            await acquire(redis)
    await redis.delete(key)


async def test_a_release_and_questions_say_what_they_were_about(redis: Redis) -> None:
    lock = Lock(redis, "orders:42")
    lease = await lock.acquire()
    await put_a_list_at(redis, "aiolocks:lock:{orders:42}")
    for call, note in (
        (lease.release, "while releasing lock 'orders:42'"),
        (lock.statistics, "while asking about lock 'orders:42'"),
        (lock.holders, "while asking about lock 'orders:42'"),
    ):
        with pytest.raises(ResponseError) as caught:
            await call()
        assert caught.value.__notes__ == [note]
    await redis.delete("aiolocks:lock:{orders:42}")


async def test_a_release_that_is_refused_goes_on_in_the_background(redis: Redis) -> None:
    """What was refused may be allowed again, as when a right is given back."""
    lock = Lock(redis, "orders:42", ttl=20)
    lease = await lock.acquire()
    value: Any = await redis.get("aiolocks:lock:{orders:42}")
    await put_a_list_at(redis, "aiolocks:lock:{orders:42}")
    with pytest.raises(ResponseError, match=WRONG_TYPE):
        await lease.release()
    await redis.set("aiolocks:lock:{orders:42}", value, px=20_000)
    async with asyncio.timeout(10):
        while await redis.exists("aiolocks:lock:{orders:42}"):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["multilock", "hierarchical lock"])
@pytest.mark.parametrize("at", [0, 1], ids=["the first", "the last"])
async def test_a_release_by_hand_of_several_keys_raises_at_once_when_one_is_of_another_type(
    kind: str, at: int, redis: Redis
) -> None:
    """The others are released all the same."""
    lock: Any = MultiLock(redis, ["orders:42", "orders:43"])
    keys = ["aiolocks:multi:{orders:42}", "aiolocks:multi:{orders:43}"]
    if kind == "hierarchical lock":
        lock = HierarchicalLock(redis, "orders/42").write
        keys = ["aiolocks:hierarchy:{orders}", "aiolocks:hierarchy:{orders}/42"]
    lease = await lock.acquire()
    assert await redis.exists(*keys) == 2
    await put_a_list_at(redis, keys[at])
    async with bounded(AT_ONCE):
        with pytest.raises(ResponseError, match=WRONG_TYPE):
            await lease.release()
    async with bounded(AT_ONCE):
        while await redis.exists(keys[1 - at]):
            await asyncio.sleep(0.01)
    await redis.delete(keys[at])


async def test_the_end_of_a_block_of_several_names_does_not_wait_for_one_of_another_type(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with bounded(AT_ONCE):
        async with MultiLock(redis, ["orders:42", "orders:43"]):
            await put_a_list_at(redis, "aiolocks:multi:{orders:43}")
    assert "the release could not be confirmed" in caplog.text
    await redis.delete("aiolocks:multi:{orders:43}")


@pytest.mark.parametrize("refusing", [1, 2])
async def test_a_release_of_a_redlock_raises_at_once_when_too_few_servers_can_end_it(
    refusing: int, one_server: RedisServer
) -> None:
    """One of three that refuses changes nothing, as a majority has released it."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Redis.from_url(f"{one_server.url}?db={db}")) for db in (0, 7, 8)]
        lease = await Redlock(servers, "orders:42").acquire()
        key = "aiolocks:quorum:{orders:42}"
        for server in servers[:refusing]:
            assert await server.exists(key)
            await put_a_list_at(server, key)
        async with bounded(AT_ONCE):
            if refusing == 1:
                assert await lease.release()
            else:
                with pytest.raises(ResponseError, match=WRONG_TYPE):
                    await lease.release()
        async with bounded(AT_ONCE):
            while await servers[-1].exists(key):
                await asyncio.sleep(0.01)
        for server in servers[:refusing]:
            await server.delete(key)
