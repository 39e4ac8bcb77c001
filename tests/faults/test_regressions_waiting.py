"""Faults once found in how waiters ask, stand in the queue and are told: each test is one that came back."""

import asyncio
import time

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ResponseError

from aiolocks import Lease, Lock, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import outcome_of, retrying
from tests.support.inside import forget_declarations, rechecks_of
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.network import until
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]

LIMIT = "aiolocks:semaphore:{resized}:meta"


async def until_waiting(acquirable: Lock | Semaphore, count: int) -> None:
    async with asyncio.timeout(5):
        while (await acquirable.statistics()).waiting != count:
            await asyncio.sleep(0.01)


async def keys_of_the_queue(redis: Redis) -> list[bytes | str]:
    keys = [*await redis.keys("*:q:*"), *await redis.keys("*:queue")]
    assert len(keys) == 2
    return keys


async def forget_waiters(redis: Redis) -> None:
    """Empty all queues, as after a restart, or after a silence for which the waiters are taken for dead."""
    await redis.delete(*await keys_of_the_queue(redis))


async def cancel(*tasks: asyncio.Task[Lease]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_resize_is_not_undone_by_waiters_that_have_to_ask_again(redis: Redis, redis_url: str) -> None:
    """They had declared their own limit when they first asked, which was before it."""
    semaphore = Semaphore(redis, "resized", 3)
    held = [await semaphore.acquire() for _ in range(3)]
    forget_declarations()  # what follows is another process
    async with Redis.from_url(redis_url) as client:
        waiters = [asyncio.create_task(Semaphore(client, "resized", 3).acquire()) for _ in range(3)]
        await until_waiting(semaphore, 3)
        await semaphore.resize(1)
        await forget_waiters(redis)
        await until_waiting(semaphore, 3)
        assert (await semaphore.statistics()).limit == 1

        await cancel(*waiters)
    for lease in held:
        await lease.release()


async def test_a_resize_is_not_undone_by_a_first_request_that_is_sent_again(redis: Redis, proxy: FaultProxy) -> None:
    """It has declared its limit although its answer was lost."""
    proxy.drop_next_reply(b"{resized}")
    async with retrying(proxy) as client:
        asking = asyncio.create_task(Semaphore(client, "resized", 3).acquire())
        async with asyncio.timeout(5):
            while not await redis.hexists(LIMIT, "limit"):
                await asyncio.sleep(0)
        await redis.hset(LIMIT, "limit", "1")  # what another process's resize writes
        lease = await asyncio.wait_for(asking, timeout=5)
        assert (await Semaphore(redis, "resized", 3).statistics()).limit == 1
        await lease.release()


async def test_a_task_that_would_wait_for_itself_since_a_resize_gets_that_error_when_it_asks_again(
    redis: Redis, redis_url: str
) -> None:
    """Or it would stand in no queue any more, and wait for ever."""
    semaphore = Semaphore(redis, "shrunk", 3)
    others = await semaphore.acquire(permits=2)
    async with Redis.from_url(redis_url) as client:

        async def nest() -> None:
            mine = Semaphore(client, "shrunk", 3)
            async with mine, mine.hold(permits=2, timeout=None):
                raise AssertionError("all three permits, with two held by others")

        nesting = asyncio.create_task(nest())
        await until_waiting(semaphore, 1)
        async with redis.pipeline(transaction=True) as at_once:  # or it would ask, and be told, in between
            await at_once.hset("aiolocks:semaphore:{shrunk}:meta", "limit", "2")  # what another process's resize writes
            await at_once.delete(*await keys_of_the_queue(redis))
            await at_once.execute()
        with pytest.raises(RuntimeError, match="wait for itself"):
            await asyncio.wait_for(nesting, timeout=5)
        assert (await semaphore.statistics()).waiting == 0
        assert (await semaphore.statistics()).permits == 2
    await others.release()


async def test_a_session_shows_life_as_often_as_its_shortest_ttl_asks_though_longer_ones_ask_with_it(
    redis: Redis, redis_url: str
) -> None:
    """Or its turns would outlast the lease of a session that has died."""
    short, long = 0.4, 30.0
    holding = await Lock(redis, "mixed").acquire()
    intervals = []
    for ttls in ([short], [*[short] * 4, long]):
        async with Redis.from_url(redis_url) as client:
            waiters = [asyncio.create_task(Lock(client, "mixed", ttl=ttl).acquire()) for ttl in ttls]
            await until_waiting(Lock(redis, "mixed"), len(waiters))
            intervals.append(rechecks_of(client).interval)
            await cancel(*waiters)
            await until_waiting(Lock(redis, "mixed"), 0)
    assert intervals[0] == intervals[1] < short
    await holding.release()


async def test_a_session_whose_waiters_begin_to_ask_for_more_life_signs_stays_in_the_queue(
    redis: Redis, redis_url: str
) -> None:
    """With the first short TTL its line lives no longer than three intervals, and the re-check due was set before."""
    short, long = 0.4, 30.0
    holding = await Lock(redis, "mixed").acquire()
    async with Redis.from_url(redis_url) as client:
        first = asyncio.create_task(Lock(client, "mixed", ttl=long).acquire())
        await until_waiting(Lock(redis, "mixed"), 1)
        await until(lambda: rechecks_of(client).subscribed and rechecks_of(client).due_in > 0.8)
        second = asyncio.create_task(Lock(client, "mixed", ttl=short).acquire())
        await until_waiting(Lock(redis, "mixed"), 2)
        for _ in range(50):
            assert (await Lock(redis, "mixed").statistics()).waiting == 2, "its line has run out"
            await asyncio.sleep(0.02)
        await cancel(first, second)
    await holding.release()


async def test_a_waiter_is_not_given_up_because_its_loop_was_blocked_for_a_ttl(redis: Redis, proxy: FaultProxy) -> None:
    """Redis was there all the time; that a connection broke meanwhile is one failure, and not a TTL of them."""
    ttl = 1.0
    requests = 0

    def count(request: bytes) -> None:
        nonlocal requests
        requests += b"{blocked}" in request

    async with Redis.from_url(proxy.url) as client, Lock(redis, "blocked") as lease:
        waiter = asyncio.create_task(Lock(client, "blocked", ttl=ttl).acquire())
        await until_waiting(Lock(redis, "blocked"), 1)
        time.sleep(1.2 * ttl)
        proxy.cut_all()
        proxy.on_request = count
        await until(lambda: waiter.done() or requests >= 2)
        assert not waiter.done(), waiter.exception()
        await lease.release()
        await (await asyncio.wait_for(waiter, timeout=5)).release()


async def test_a_waiter_that_a_full_redis_does_not_queue_any_more_gets_redis_pys_exception_after_a_ttl(
    own_server: RedisServer,
) -> None:
    ttl = 1.0
    async with Redis.from_url(own_server.url) as holder, Redis.from_url(own_server.url) as client:
        async with Lock(holder, "full"), measured_lag() as lag:
            waiter = asyncio.create_task(outcome_of(lambda: Lock(client, "full", ttl=ttl).acquire()))
            await until_waiting(Lock(holder, "full"), 1)
            await holder.config_set("maxmemory", "1")
            begun = time.monotonic()
            await forget_waiters(holder)
            try:
                result, _ = await asyncio.wait_for(waiter, timeout=6)
                took = time.monotonic() - begun
            finally:
                await holder.config_set("maxmemory", "0")
    print(f"{result!r} after {took:.2f} s")
    assert isinstance(result, ResponseError)
    assert "maxmemory" in str(result)
    assert 0.5 * ttl < took
    assert_within(took, 2 * ttl + SLACK * 0.2 + lag.worst)


async def test_a_wake_up_connection_that_is_dead_but_open_is_replaced(redis: Redis, proxy: FaultProxy) -> None:
    """Or every hand-over would have to wait for a re-check."""
    count, woken = 7, 0.3
    proxy.drop_next_reply(b"SUBSCRIBE", "black_hole")
    mine = Lock(redis, "half open")
    async with Redis.from_url(proxy.url) as client, Lock(client, "keeps the session"), measured_lag() as lag:
        theirs = Lock(client, "half open")
        delays = []
        for _ in range(count):
            async with mine:
                waiter = asyncio.create_task(theirs.acquire())
                await until_waiting(mine, 1)
                await asyncio.sleep(0.1)  # it has subscribed, and its next re-check is far
                released_at = time.monotonic()
            lease = await asyncio.wait_for(waiter, timeout=5)
            delays.append(time.monotonic() - released_at)
            await lease.release()
    print("seconds to the hand-over:", [round(delay, 3) for delay in delays])
    assert max(delays[-2:]) < woken + lag.worst


async def test_a_primary_that_was_demoted_for_a_moment_is_asked_again(own_server: RedisServer) -> None:
    """Its refusal is no answer to an acquire, but a reason to look for the primary anew."""
    patient = Retry(ConstantBackoff(0.05), 50)
    async with Redis.from_url(own_server.url) as admin, Redis.from_url(own_server.url, retry=patient) as client:
        async with Lock(client, "keeps the session"):
            await admin.replicaof("127.0.0.1", "1")
            before = (await admin.info("stats"))["total_error_replies"]
            waiter = asyncio.create_task(Lock(client, "demoted").acquire(timeout=5))
            async with asyncio.timeout(5):
                while (await admin.info("stats"))["total_error_replies"] == before:
                    await asyncio.sleep(0.01)
            await admin.replicaof("NO", "ONE")
            lease = await waiter
            await lease.release()
