"""What a MultiLock promises beyond the conformance table: which others it excludes, and what it says of each name."""

import asyncio
import random
from typing import Literal

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lock, MultiLock
from tests.support.primitives import as_a_stranger, free, scripts_run

MOST_NAMES = 1_000
MAX_WORDS = 4_000
"""Of all commands that one call guards."""


def test_names_are_taken_once_each_and_in_one_order() -> None:
    lock = MultiLock(Redis(port=1), ["b", "a", "c", "b"])
    assert lock.names == ("a", "b", "c")
    assert lock.name == "a, b, c"
    assert repr(lock) == "<MultiLock 'a, b, c'>"


def test_no_names_one_string_or_more_names_than_a_script_can_look_at_are_errors_that_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="names"):
        MultiLock(Redis(port=1), [])
    with pytest.raises(TypeError, match=r"\['orders'\]"):
        MultiLock(Redis(port=1), "orders")
    names = [f"account:{number}" for number in range(MOST_NAMES + 1)]
    with pytest.raises(ValueError, match=r"at most 1,000 names, not 1,001.*one name for many"):
        MultiLock(Redis(port=1), names)
    assert len(MultiLock(Redis(port=1), names[1:] * 2).names) == MOST_NAMES


@pytest.mark.usefixtures("quick_sessions")
class TestOnEveryServer:
    """What needs one."""

    async def test_multilocks_that_share_a_name_exclude_each_other(self, client: Redis) -> None:
        async with MultiLock(client, ["a", "b"]):
            assert await asyncio.create_task(MultiLock(client, ["c", "b"]).try_acquire()) is None
            async with MultiLock(client, ["c", "d"]) as lease:
                assert lease.held

    @pytest.mark.rest
    @pytest.mark.redis
    @pytest.mark.usefixtures("one_server")  # a guard by several names needs them all in one place
    @pytest.mark.parametrize("watchdog", ["task", "thread"])
    async def test_as_many_names_as_are_allowed_are_held_renewed_and_guarded_by(
        self, redis: Redis, watchdog: Literal["task", "thread"]
    ) -> None:
        names = [f"account:{number:04}" for number in range(MOST_NAMES)]
        lock = MultiLock(redis, names, ttl=6, watchdog=watchdog)
        async with lock as lease:
            assert len(lease.fencing_tokens) == MOST_NAMES
            assert await lease.guard(("SET", "k", "v"), ("GET", "k")) == [b"OK", b"v"]
            words = ["MSET", *(word for number in range((MAX_WORDS - 2) // 2) for word in (f"k{number}", "v"))]
            assert await lease.guard(words) == [b"OK"]
            assert await lease.renew()
            assert await asyncio.create_task(MultiLock(redis, names[-1:]).try_acquire()) is None
            assert (await lock.statistics()).holders == 1
            with pytest.raises(AcquireTimeoutError):
                await asyncio.create_task(lock.acquire(timeout=2))
        assert not await lock.locked()
        await free(lock)
        await redis.delete("k", *words[1::2])

    async def test_a_block_that_would_wait_for_itself_by_one_name_is_an_error(self, client: Redis) -> None:
        async with MultiLock(client, ["a", "b"]):
            with pytest.raises(RuntimeError):
                await MultiLock(client, ["b", "c"]).acquire()
            assert await MultiLock(client, ["b", "c"]).try_acquire() is None
        async with MultiLock(client, ["b", "c"]) as lease:
            assert lease.held

    async def test_the_order_of_names_does_not_matter_to_a_release(self, client: Redis) -> None:
        lease = await MultiLock(client, ["a", "b"]).acquire()
        await MultiLock(client, ["b", "a", "b"]).release()
        assert not lease.held

    async def test_there_is_a_fencing_token_for_each_name(self, client: Redis) -> None:
        async with MultiLock(client, ["a", "b"]) as first:
            assert set(first.fencing_tokens) == {"a", "b"}
            assert first.fencing_token == max(first.fencing_tokens.values())
        async with MultiLock(client, ["b"]) as second:
            assert second.fencing_tokens["b"] > first.fencing_tokens["b"]

    async def test_a_lease_of_one_name_has_its_fencing_token_by_name_too(self, client: Redis) -> None:
        async with Lock(client, "a") as lease:
            assert lease.fencing_tokens == {"a": lease.fencing_token}

    async def test_neighbours_in_a_ring_all_get_their_turn(self, client: Redis) -> None:
        """The dining philosophers."""
        turns = 0

        async def dine(seat: int) -> None:
            nonlocal turns
            for _ in range(10):
                async with MultiLock(client, [f"fork {seat}", f"fork {(seat + 1) % 5}"]):
                    await asyncio.sleep(0)
                    turns += 1

        async with asyncio.timeout(20):
            await asyncio.gather(*(dine(seat) for seat in range(5)))
        assert turns == 50

    @pytest.mark.redis
    @pytest.mark.usefixtures("one_server")  # whose commands are counted
    @pytest.mark.parametrize("order", ["first to last", "last to first", "random"])
    async def test_names_that_come_free_one_by_one_cost_a_few_scripts_each(self, redis: Redis, order: str) -> None:
        """Where a waiter asked for all that was missing, each time, the scripts grew with the square of the names."""
        names = [f"account:{number:04}" for number in range(200)]
        holders = {name: await as_a_stranger(MultiLock(redis, [name]).acquire()) for name in names}
        before = await scripts_run(redis)
        waiter = as_a_stranger(MultiLock(redis, names).acquire())
        freed = {"first to last": names, "last to first": names[::-1], "random": random.sample(names, len(names))}
        for name in freed[order]:
            while not await redis.keys("*:queue"):  # until it waits in line for the next
                pass
            await holders.pop(name).release()
        lease = await waiter
        assert await scripts_run(redis) - before <= 12 * len(names)
        await lease.release()
