"""Faults once found in how leases are kept, lost and let go: each test is one that came back."""

import asyncio
import time

import pytest
from redis.asyncio import Redis

from aiolocks import Lease, LeaseLostError, Lock
from aiolocks.testing import FaultProxy
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


async def test_a_renewal_on_a_half_open_link_is_retried_in_time_though_the_loop_was_blocked(proxy: FaultProxy) -> None:
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


async def test_a_short_lease_is_kept_though_redis_is_far_away(proxy: FaultProxy) -> None:
    """The round trip is known from the grant, so the first renewal does not give its link up too soon."""
    proxy.delay_replies = 0.25
    async with Redis.from_url(proxy.url) as client, Lock(client, "far", ttl=1.5) as lease:
        await asyncio.sleep(3)
        lease.check()
