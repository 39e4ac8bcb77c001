"""F13, F14: behind Sentinels the primary is replaced or left without replicas, and a quorum has a set for each vote."""

import asyncio
import gc
import time
from contextlib import AsyncExitStack

import pytest
from redis.exceptions import RedisError

from aiolocks import AcquireTimeoutError, LeaseLostError, Lock, Redlock
from tests.faults.support.replacing import replaced
from tests.faults.support.traffic import TTL, key_of, renewed
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.sentinels import SentinelSet

SHORT = 3.0
"""TTL where a lease is to end."""


async def test_a_watchdog_in_a_thread_keeps_its_leases_and_the_users_clients_can_be_closed_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [f"orders:{number}" for number in range(5)]
    with SentinelSet() as own:
        async with own.client() as client:
            leases = [await Lock(client, name, ttl=TTL, watchdog="thread").acquire() for name in names]
            new, since, named = await replaced(own, "failed over")
            async with measured_lag() as lag:
                took = await renewed(new, list(map(key_of, names)), since) - named
            assert_within(took, 1.1 * TTL / 3 + SLACK * 0.2 + lag.worst)  # the thread connects when it first renews
            assert [await lease.release() for lease in leases] == [True] * len(leases)
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_quorum_of_three_groups_of_one_service_name_outlives_one_primary_after_the_other() -> None:
    with SentinelSet(groups=3, replicas=1) as sentinels:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(group.client()) for group in sentinels.groups]
            lock = Redlock(clients, "orders", ttl=TTL)
            async with lock as lease:
                for group in sentinels.groups[:2]:
                    old = group.primary()
                    outage = asyncio.create_task(replaced(group, "killed"))
                    while old.running:
                        await asyncio.sleep(0.01)
                    async with Redlock(clients, "others", ttl=TTL).hold(timeout=TTL):
                        pass
                    assert await asyncio.create_task(lock.try_acquire()) is None
                    new, since, _ = await outage
                    await renewed(new, ["aiolocks:quorum:{orders}"], since)
                assert lease.held
            async with lock.hold(timeout=TTL) as later:
                assert later.fencing_token > lease.fencing_token


async def test_without_replicas_a_primary_that_must_have_some_renews_nothing_and_grants_nothing() -> None:
    """F13: what ends a lease at a primary that is cut off."""
    with SentinelSet(options={"min-replicas-max-lag": "1"}) as own:
        replicas = own.replicas()
        own.primary().operator.config_set("min-replicas-to-write", 1)
        async with own.client() as client, own.client() as other, measured_lag() as lag:
            with pytest.raises(LeaseLostError):
                async with Lock(client, "orders", ttl=SHORT):
                    for server in replicas:
                        server.pause()
                    begun = time.monotonic()
                    await asyncio.sleep(3 * SHORT)
            # Redis looks once a second how far its replicas lag, and the last renewal may come just before it notices.
            assert_within(time.monotonic() - begun, 1 + 1 + SHORT + SLACK * 0.2 + lag.worst)
            with pytest.raises((RedisError, AcquireTimeoutError)):
                await Lock(other, "orders", ttl=SHORT).acquire(timeout=SHORT)
            for server in replicas:
                server.resume()
            async with Lock(other, "orders", ttl=SHORT).hold(timeout=SLACK * (SHORT + 1)):
                pass
