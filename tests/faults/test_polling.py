"""A session that cannot be woken polls, and goes back to being woken as soon as it can be."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import Lock, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import wait_until_listening
from tests.faults.support.kinds import Kind, make
from tests.faults.support.residue import wait_until_only_residue
from tests.support.inside import polling
from tests.support.network import until
from tests.support.primitives import queued

RIGHTS = (
    "on", ">secret", "~aiolocks:*", "+eval", "+evalsha", "+ping", "+time", "+publish", "+pubsub|numsub", "+@keyspace",
    "+@read", "+@write",
)  # fmt: skip


async def test_a_subscription_lost_and_made_again_is_no_reason_to_poll(redis: Redis, proxy: FaultProxy) -> None:
    """A turn that passes it over in between is what a cut costs, however often it happens."""
    async with Redis.from_url(proxy.url) as client:
        held = await Lock(redis, "lost", ttl=20).acquire()
        waiting = asyncio.create_task(Lock(client, "lost", ttl=20).acquire())
        for _ in range(4):
            await until(lambda: proxy.connections_open == 2)
            await wait_until_listening(redis, 1)
            proxy.cut_all(b"SUBSCRIBE")
            await redis.zrem("aiolocks:lock:{lost}:queue", *await redis.zrange("aiolocks:lock:{lost}:queue", 0, -1))
            await asyncio.sleep(0.9)
            assert not any(polling(client))
        await held.release()
        await (await waiting).release()


async def set_user(admin: Any, *rules: str) -> None:
    await admin.execute_command("ACL", "SETUSER", "deaf", *rules)


@pytest_asyncio.fixture
async def limited(redis: Redis, redis_url: str) -> AsyncIterator[Redis]:
    """A client whose user may not subscribe."""
    await set_user(redis, "reset", "resetchannels", *RIGHTS)
    async with Redis.from_url(redis_url, username="deaf", password="secret") as client:
        yield client
    await redis.acl_deluser("deaf")


async def test_a_right_that_is_given_later_is_found_and_used(redis: Redis, limited: Redis) -> None:
    """In order, with nothing lost and nothing left."""
    order: list[int] = []

    async def take(number: int) -> None:
        async with Lock(limited if number % 2 else redis, "given", ttl=20):
            order.append(number)

    async with Lock(redis, "given", ttl=20):
        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(take(number)))
            await queued(Lock(redis, "given"), number + 1)
        await until(lambda: any(polling(limited)))
        await set_user(redis, "+subscribe", "+unsubscribe", "&aiolocks:*")
        await until(lambda: not any(polling(limited)))
        await queued(Lock(redis, "given"), 6)
        while any(b":q:poll" in key for key in await redis.keys()):
            await asyncio.sleep(0.005)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4, 5]
    await wait_until_only_residue(redis, within=1.0)


@pytest.mark.parametrize("kind", [Lock, Semaphore])
@pytest.mark.parametrize("how", ["the other has left", "both at once"])
async def test_a_waiter_that_leaves_a_polling_session_strands_no_other_waiter_at_any_ttl(
    redis: Redis, limited: Redis, kind: Kind, how: str
) -> None:
    """Its line is named by how often it looks, and that by the shortest TTL of those who wait."""
    async with make(kind, redis, "warm", ttl=30):
        warm = asyncio.create_task(make(kind, limited, "warm", ttl=30).acquire())
        await until(lambda: any(polling(limited)))
        for round_ in range(3):
            name = f"left:{round_}"
            mine = make(kind, redis, name, ttl=30)
            held = await mine.acquire()
            short = asyncio.create_task(make(kind, limited, name, ttl=0.4).acquire())
            if how == "the other has left":
                await queued(mine, 1)
            long = asyncio.create_task(make(kind, limited, name, ttl=30).acquire())
            await queued(mine, 2)
            for one in (short, long) if how == "the other has left" else (long, short):
                one.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await one
            assert (await mine.statistics()).waiting == 0
            await held.release()
            lease = await mine.try_acquire()
            assert lease is not None, "it was handed to a caller that had left"
            await lease.release()
    await (await warm).release()
