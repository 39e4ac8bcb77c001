"""Faults once found in how waiters ask, stand in the queue and are told: each test is one that came back."""

import asyncio
import time

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from aiolocks import Lease, Lock, Semaphore
from aiolocks.testing import FaultProxy
from tests.support.inside import forget_declarations
from tests.support.network import until
from tests.support.primitives import queued
from tests.support.servers import RedisServer


async def cancel(*tasks: asyncio.Task[Lease]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_resize_is_not_undone_by_waiters_that_have_to_ask_again(redis: Redis, another: Redis) -> None:
    """They had declared their own limit when they first asked, which was before it."""
    semaphore = Semaphore(redis, "resized", 3)
    held = [await semaphore.acquire() for _ in range(3)]
    forget_declarations()  # what follows is another process
    waiters = [asyncio.create_task(Semaphore(another, "resized", 3).acquire()) for _ in range(3)]
    await queued(semaphore, 3)
    await semaphore.resize(1)
    keys = [*await redis.keys("*:q:*"), *await redis.keys("*:queue")]
    assert len(keys) == 2
    await redis.delete(*keys)  # as after a restart, or after a silence for which the waiters are taken for dead
    await queued(semaphore, 3)
    assert (await semaphore.statistics()).limit == 1
    await cancel(*waiters)
    for lease in held:
        await lease.release()


async def test_a_waiter_is_not_given_up_because_its_loop_was_blocked_for_a_ttl(redis: Redis, proxy: FaultProxy) -> None:
    """Redis was there all the time; that a connection broke meanwhile is one failure, and not a TTL of them."""
    ttl = 1.0
    requests = 0

    def count(request: bytes) -> None:
        nonlocal requests
        requests += b"{blocked}" in request

    async with Redis.from_url(proxy.url) as client, Lock(redis, "blocked") as lease:
        waiter = asyncio.create_task(Lock(client, "blocked", ttl=ttl).acquire())
        await queued(Lock(redis, "blocked"), 1)
        time.sleep(1.2 * ttl)
        proxy.cut_all()
        proxy.on_request = count
        await until(lambda: waiter.done() or requests >= 2)
        assert not waiter.done(), waiter.exception()
        await lease.release()
        await (await asyncio.wait_for(waiter, timeout=5)).release()


async def test_a_primary_that_was_demoted_for_a_moment_is_asked_again(own_server: RedisServer, own: Redis) -> None:
    """Its refusal is no answer to an acquire, but a reason to look for the primary anew."""
    patient = Retry(ConstantBackoff(0.05), 50)
    async with Redis.from_url(own_server.url, retry=patient) as client, Lock(client, "keeps the session"):
        await own.replicaof("127.0.0.1", "1")
        before = (await own.info("stats"))["total_error_replies"]
        waiter = asyncio.create_task(Lock(client, "demoted").acquire(timeout=5))
        async with asyncio.timeout(5):
            while (await own.info("stats"))["total_error_replies"] == before:
                await asyncio.sleep(0.01)
        await own.replicaof("NO", "ONE")
        await (await waiter).release()
