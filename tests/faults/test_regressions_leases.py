"""Faults once found in how leases are kept, lost and let go: each test is one that came back."""

import asyncio
import threading
import time

import pytest
from redis.asyncio import Redis

from aiolocks import Lease, LeaseLostError, Lock, Semaphore
from aiolocks.testing import FaultProxy
from tests.support.inside import forget_orders
from tests.support.lateness import SLACK, in_time
from tests.support.network import until

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]


async def until_renewed(lease: Lease, beyond: float) -> None:
    """Wait until more than *beyond* seconds are left. In the lease's block this ends if it is lost, too."""
    async with asyncio.timeout(5):
        while lease.remaining() <= beyond:
            await asyncio.sleep(0.01)


async def test_a_lease_that_another_holder_has_is_lost_though_the_first_release_could_not_leave(
    redis: Redis, proxy: FaultProxy
) -> None:
    """Only a release that left and was not answered can be why the server knows nothing of the lease."""
    async with Redis.from_url(proxy.url) as client:
        with pytest.raises(LeaseLostError):
            async with Lock(client, "stolen", ttl=30):
                await redis.delete("aiolocks:lock:{stolen}")
                thief = await Lock(redis, "stolen").acquire()
                proxy.refuse = True
                proxy.cut_all()
                await until(lambda: proxy.connections_open == 0)
                asyncio.get_running_loop().call_later(0.3, setattr, proxy, "refuse", False)
        assert thief.held
        await thief.release()


async def test_a_lease_with_a_short_max_stall_is_kept_beside_one_with_a_long_one(redis: Redis) -> None:
    """The loop, though idle, has to show life as often as the strictest lease wants, from its first moment on."""
    async with Lock(redis, "patient", watchdog="thread"):
        await asyncio.sleep(0.15)  # with the patient one alone, the loop shows life now, and again in 0.85 s
        async with Lock(redis, "strict", ttl=0.85, watchdog="thread", max_stall=0.15) as lease:
            await asyncio.sleep(1.1)
            assert lease.held
            assert await redis.pttl("aiolocks:lock:{strict}") > 0


async def test_a_renewal_on_a_half_open_link_is_retried_in_time_though_the_loop_was_blocked(
    redis: Redis, proxy: FaultProxy
) -> None:
    """What the loop was late must not count for the network's round trip, and so for how long an answer may take."""
    ttl = 3.0
    renewals = 0

    def break_things(request: bytes) -> None:
        nonlocal renewals
        if b"{half open}" in request:
            renewals += 1
            if renewals == 1:
                time.sleep(0.5)  # between the request and its answer
            elif renewals == 2:
                proxy.black_hole = True
                asyncio.get_running_loop().call_later(0.1, setattr, proxy, "black_hole", False)

    async with Redis.from_url(proxy.url) as client, Lock(client, "half open", ttl=ttl) as lease:
        proxy.on_request = break_things
        await until(lambda: renewals == 2)
        await until_renewed(lease, 0.8 * ttl)  # over another connection, as that one carries nothing any more
        proxy.on_request = None
        assert renewals > 2


async def test_a_hold_in_use_cannot_be_entered_again(redis: Redis) -> None:
    semaphore = Semaphore(redis, "one hold", 2)
    hold = semaphore.hold()
    async with hold as lease:
        with pytest.raises(RuntimeError, match="in use"):
            async with hold:
                pass
        lease.check()
        assert (await semaphore.statistics()).permits == 1
    assert not lease.held
    assert (await semaphore.statistics()).permits == 0


async def test_a_hold_cannot_be_entered_again_while_it_waits(redis: Redis, redis_url: str) -> None:
    semaphore = Semaphore(redis, "one hold", 1)
    entered = asyncio.Event()
    async with Redis.from_url(redis_url) as client:
        hold = Semaphore(client, "one hold", 1).hold()

        async def wait_for_it() -> None:
            async with hold as lease:
                entered.set()
                await asyncio.sleep(0.1)
                lease.check()
                assert (await semaphore.statistics()).permits == 1

        async with semaphore:
            waiter = asyncio.create_task(wait_for_it())
            async with asyncio.timeout(5):
                while not (await semaphore.statistics()).waiting:
                    await asyncio.sleep(0.01)
            with pytest.raises(RuntimeError, match="in use"):
                await asyncio.wait_for(hold.__aenter__(), timeout=5)
            assert (await semaphore.statistics()).waiting == 1
            assert not entered.is_set()
        await asyncio.wait_for(waiter, timeout=5)
        assert (await semaphore.statistics()).permits == 0
        async with hold:  # left: free for use again
            pass


async def test_a_lease_that_begins_with_little_left_is_renewed_in_time(redis: Redis, proxy: FaultProxy) -> None:
    """A third of the whole TTL after its begin, it would be over."""
    ttl = 6.0
    async with Redis.from_url(proxy.url) as client:
        holding = await Lock(redis, "little left").acquire()
        waiter = asyncio.create_task(Lock(client, "little left", ttl=ttl).acquire())
        async with asyncio.timeout(5):
            while not (await redis.pubsub_channels("aiolocks:wake:*")):
                await asyncio.sleep(0.01)
        # Nothing that is asked is answered, but what comes unasked gets through.
        proxy.on_request = lambda sent: proxy.drop_next_reply(b"EVAL", "black_hole") if b"EVAL" in sent else None
        answered_last = time.monotonic()
        await until(lambda: time.monotonic() - answered_last > 0.6 * ttl)
        await holding.release()
        lease = await asyncio.wait_for(waiter, timeout=5)
        proxy.on_request = None
        forget_orders(proxy)
        proxy.cut_all()
        left = lease.remaining()
        print(f"{left:.2f} s of {ttl:g} s are left")
        assert 0 < left < 0.4 * ttl
        async with lease:
            await until_renewed(lease, ttl / 2)


async def test_a_thread_that_cannot_be_started_fails_the_acquire_and_not_the_later_ones(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == "aiolocks-watchdog":
            raise RuntimeError("can't start new thread")
        start(thread)

    async with Redis.from_url(redis_url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="can't start new thread"):
                    await Lock(client, "no thread", watchdog="thread").acquire()
        async with in_time(SLACK * 0.3):
            while await Lock(redis, "no thread").locked():
                await asyncio.sleep(0.01)
        async with Lock(client, "no thread", ttl=1, watchdog="thread") as lease:
            time.sleep(1.5)
            lease.check()


async def test_a_short_lease_is_kept_though_redis_is_far_away(proxy: FaultProxy) -> None:
    """The round trip is known from the grant, so the first renewal does not give its link up too soon."""
    proxy.delay_replies = 0.25
    async with Redis.from_url(proxy.url) as client, Lock(client, "far", ttl=1.5) as lease:
        await asyncio.sleep(3)
        lease.check()
