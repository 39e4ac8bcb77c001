"""`track=True` goes along: with a slot to another node of a Cluster, and from one primary to the next."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from aiolocks import LeaseLostError, Lock
from tests.faults.support.asking import Body
from tests.support.clusters import ClusterSet, slot_of
from tests.support.inside import tracked_of
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.primitives import until
from tests.support.sentinels import SentinelSet
from tests.support.servers import RedisServer

KEY = "aiolocks:lock:{orders}"
SLOT = slot_of(KEY)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[ClusterSet]:
    with ClusterSet(replicas=0) as running:
        yield running


async def tracked_at(client: Any, at: Callable[[], RedisServer]) -> None:
    """Wait until the lease is tracked at a server, by what that says itself."""

    async def there() -> bool:
        return int(at().operator.info("stats")["tracking_total_items"]) > 0

    await until(there)


async def stopped_after(lock: Lock, take_away: Callable[[], Any]) -> float:
    """Return how soon the body is stopped after the last that *take_away* does, in seconds net of the loop's lag."""
    body = Body()
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError):
            async with asyncio.timeout(25), lock:
                server: RedisServer = await take_away()
                lag.worst = 0.0
                taken_at = time.monotonic()
                assert server.operator.delete(KEY)
                await body.work(60)
    return body.ended_at - taken_at - lag.worst


async def test_a_lease_is_tracked_where_its_slot_has_gone(cluster: ClusterSet) -> None:
    async with cluster.client() as client:

        async def move() -> RedisServer:
            await tracked_at(client, lambda: cluster.primary_of(SLOT))
            old = cluster.primary_of(SLOT)
            new = next(server for server in cluster.primaries() if server is not old)
            await asyncio.to_thread(cluster.begin_move, SLOT, new)
            await asyncio.to_thread(lambda: cluster.migrate(cluster.keys_to_move(SLOT)))
            await asyncio.to_thread(cluster.end_move, SLOT)
            await until(lambda: renewed(new))
            await tracked_at(client, lambda: new)
            return new

        async def renewed(new: RedisServer) -> bool:
            state = tracked_of(client)
            return int(new.operator.pttl(KEY)) > 0 and state is not None and state.links == 2

        assert_within(await stopped_after(Lock(client, "orders", track=True, ttl=6), move), 0.05 * SLACK)


@pytest.mark.slow
async def test_a_lease_is_tracked_at_the_new_primary() -> None:
    with SentinelSet() as sentinels:
        async with sentinels.client() as client:

            async def fail_over() -> RedisServer:
                await tracked_at(client, sentinels.primary)
                new = await asyncio.to_thread(sentinels.failover)
                await tracked_at(client, lambda: new)
                return new

            assert_within(await stopped_after(Lock(client, "orders", track=True, ttl=20), fail_over), 0.05 * SLACK)
