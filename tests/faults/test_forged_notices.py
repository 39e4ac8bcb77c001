"""Messages that others publish on our channels: they end no wake-up link, and no grant is believed for one alone."""

import asyncio
from typing import Any

from redis.asyncio import Redis

from aiolocks import Lease, Lock
from tests.support.lateness import SLACK, in_time


async def _waiting(redis: Any, client: Redis) -> "tuple[asyncio.Task[Lease], bytes, bytes]":
    """Return a waiter of "orders" that has subscribed, its channel, and its token."""
    task = asyncio.create_task(Lock(client, "orders").acquire())
    async with asyncio.timeout(10):
        while not (lines := await redis.keys("aiolocks:lock:{orders}:q:*")):
            await asyncio.sleep(0.01)
        while not (channels := await redis.pubsub_channels("aiolocks:*")):
            await asyncio.sleep(0.01)
    [entry] = await redis.zrange(lines[0], 0, -1)
    return task, channels[0], entry.split()[0]


async def _wake_up_link(redis: Redis) -> Any:
    return [each["id"] for each in await redis.client_list() if each["sub"] != "0"]


async def test_a_message_with_a_huge_number_does_not_end_the_wake_up_link(redis: Redis, another: Redis) -> None:
    """PUBLISH alone is enough to send one."""
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    held = await Lock(redis, "orders").acquire()
    waiter, channel, token = await _waiting(redis, another)
    link = await _wake_up_link(redis)
    for fence, amount in (("9" * 5000, "1"), ("1", "9" * 5000), ("-" + "9" * 5000, "1"), ("1", "9" * 400)):
        for addressed in (token.decode(), "x"):
            assert await redis.publish(channel, f"{addressed} {fence} {amount} aiolocks:lock:{{orders}}") == 1
    await asyncio.sleep(0.3)
    assert await _wake_up_link(redis) == link
    assert not waiter.done()
    async with in_time(0.1 * SLACK):
        await held.release()
        await (await waiter).release()
    assert not unhandled, unhandled


async def test_a_grant_that_is_far_ahead_of_the_servers_time_is_not_believed(redis: Redis, another: Redis) -> None:
    """Its fencing token would refuse all that come after it."""
    held = await Lock(redis, "orders").acquire()
    waiter, channel, token = await _waiting(redis, another)
    far = held.fencing_token + 2 * 86_400_000_000
    for fence in (far, 2**53 - 1, 10**16 - 1):
        await redis.publish(channel, b"%b %d 30000 aiolocks:lock:{orders}" % (token, fence))
    await asyncio.sleep(0.5)
    assert not waiter.done()
    await held.release()
    lease = await waiter
    assert held.fencing_token < lease.fencing_token < far
    await lease.release()


async def test_a_grant_that_is_rightly_far_ahead_is_found_by_a_recheck(redis: Redis, another: Redis) -> None:
    """As when the server's clock was set right by years."""
    held = await Lock(redis, "orders").acquire()
    waiter, channel, token = await _waiting(redis, another)
    far = held.fencing_token + 2 * 86_400_000_000
    await redis.set("aiolocks:lock:{orders}", b"%b %d" % (token, far), px=30_000)
    async with in_time(0.1 * SLACK, "found by the next re-check that is due"):
        await redis.publish(channel, b"%b %d 30000 aiolocks:lock:{orders}" % (token, far))
        lease = await waiter
    assert lease.fencing_token == far
    await lease.release()
    await held.release()
    await redis.delete("aiolocks:lock:{orders}:queue", *await redis.keys("aiolocks:lock:{orders}:q:*"))
