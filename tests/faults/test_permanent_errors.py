"""An error that asking again does not change reaches its caller at once, and is not ridden out like an outage."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import Lock, Semaphore
from aiolocks.compat import RedisLock
from tests.support.lateness import SLACK, in_time

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults, pytest.mark.leaves_residue]

WRONG_TYPE = r"WRONGTYPE|wrong kind"

AT_ONCE = SLACK * 0.25
"""Seconds: less than the second that an undo after a failure may take, and far less than the 10 s of an outage."""


async def put_a_list_at(redis: Redis, key: str) -> None:
    await redis.delete(key)
    await redis.rpush(key, "one")


@pytest.mark.parametrize("make", [Lock, lambda redis, name: Semaphore(redis, name, 2)], ids=["lock", "semaphore"])
async def test_a_release_by_hand_of_a_key_of_another_type_raises_at_once(make: type[Lock], redis: Redis) -> None:
    lock = make(redis, "orders:42")
    lease = await lock.acquire()
    keys: Any = await redis.keys("aiolocks:*{orders:42}")
    (key,) = keys
    await put_a_list_at(redis, key.decode())
    async with in_time(AT_ONCE):
        with pytest.raises(ResponseError, match=WRONG_TYPE):
            await lease.release()
    await redis.delete(key)


async def test_the_end_of_a_block_of_a_redis_lock_raises_at_once(redis: Redis) -> None:
    async with in_time(AT_ONCE):
        with pytest.raises(ResponseError, match=WRONG_TYPE):
            async with RedisLock(redis, "orders:42", timeout=10):
                await put_a_list_at(redis, "orders:42")
    await redis.delete("orders:42")


@pytest.mark.parametrize("by_hand", [True, False], ids=["acquire", "try_acquire"])
async def test_an_acquire_of_a_key_of_another_type_raises_at_once(by_hand: bool, redis: Redis) -> None:
    await put_a_list_at(redis, "aiolocks:lock:{orders:42}")
    lock = Lock(redis, "orders:42")
    async with in_time(AT_ONCE):
        with pytest.raises(ResponseError, match=WRONG_TYPE):
            await (lock.acquire() if by_hand else lock.try_acquire())
    await redis.delete("aiolocks:lock:{orders:42}")


async def test_an_ask_once_of_a_redis_lock_of_another_type_raises_at_once(redis: Redis) -> None:
    await put_a_list_at(redis, "orders:42")
    async with in_time(AT_ONCE):
        with pytest.raises(ResponseError, match=WRONG_TYPE):
            await RedisLock(redis, "orders:42").acquire(blocking=False)
    await redis.delete("orders:42")


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
