"""Faults once found in how leases are kept, lost and let go: each test is one that came back."""

import asyncio

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseLostError, Lock
from aiolocks.testing import FaultProxy
from tests.support.network import until


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


async def test_a_short_lease_is_kept_though_redis_is_far_away(proxy: FaultProxy) -> None:
    """The round trip is known from the grant, so the first renewal does not give its link up too soon."""
    proxy.delay_replies = 0.25
    async with Redis.from_url(proxy.url) as client, Lock(client, "far", ttl=1.5) as lease:
        await asyncio.sleep(3)
        lease.check()
