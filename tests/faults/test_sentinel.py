"""F13, F14: behind Sentinels the primary is killed, stopped, replaced on purpose, or left without replicas."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from redis.exceptions import RedisError

from aiolocks import AcquireTimeoutError, LeaseLostError, Lock, Redlock
from tests.faults.support.traffic import MANY, TTL, check_many_need_a_replica, key_of, promoted, renewed, traffic
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.leftovers import Leftovers, tasks_beyond, wait_until_none
from tests.support.sentinels import SentinelSet
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.asyncio]

SHORT = 3.0
"""TTL where a lease is to end."""


@pytest.fixture(scope="module")
def lasting() -> Iterator[SentinelSet]:
    """One for all tests that leave the primary what it is."""
    with SentinelSet(options={"min-replicas-max-lag": "1"}) as running:
        yield running


@pytest.fixture
def own() -> Iterator[SentinelSet]:
    """One whose primary is replaced: the old one would be a replica some ten seconds later."""
    with SentinelSet() as running:
        yield running


@pytest_asyncio.fixture
async def standing_still(lasting: SentinelSet) -> AsyncIterator[Callable[[], None]]:
    """Stops all replicas; at the end they go on, and are in sync."""

    def stop() -> None:
        for server in lasting.replicas():
            server.pause()

    yield stop
    resume(lasting)
    await asyncio.to_thread(lasting.wait_until_whole)
    lasting.primary().flush()


def resume(sentinels: SentinelSet) -> None:
    for server in sentinels.servers:
        server.resume()


Outage = Callable[[SentinelSet, RedisServer], object]

OUTAGES: dict[str, Outage] = {
    "killed": lambda sentinels, primary: primary.kill(),
    "stopped": lambda sentinels, primary: primary.pause(),
    "failed over": lambda sentinels, primary: sentinels.failover(),
}


async def replaced(sentinels: SentinelSet, outage: str) -> tuple[RedisServer, float, float]:
    """Return the new primary, a moment just before it was one, and when all Sentinels named it."""
    old = await asyncio.to_thread(sentinels.primary)
    others = [server for server in sentinels.servers if server is not old]
    since, _ = await asyncio.gather(
        asyncio.to_thread(promoted, others), asyncio.to_thread(OUTAGES[outage], sentinels, old)
    )  # fmt: skip
    new = await asyncio.to_thread(sentinels.wait_for_primary, other_than=old)
    return new, since, time.monotonic()


@pytest.mark.slow
@pytest.mark.parametrize("outage", OUTAGES)
async def test_when_the_primary_is_replaced_leases_are_kept_and_waiters_and_newcomers_are_served(
    own: SentinelSet, outage: str
) -> None:
    async with own.client() as client, measured_lag() as lag:
        async with traffic(client) as crowd:
            new, since, named = await replaced(own, outage)
            took = await renewed(new, list(map(key_of, crowd.leases)), since) - named
        # Sentinels hear of a promotion up to a second later; what the old primary has granted by then is lost (L3).
        await crowd.check(took - lag.worst, some_lost=outage == "failed over")


@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_with_a_replica_that_has_each_grant_a_killed_primary_of_sentinels_takes_nothing(own: SentinelSet) -> None:
    """Done for 100 names with 20 waiters each: all are served, and nobody loses a lease."""
    async with own.client() as client, measured_lag() as lag:
        async with traffic(client, names=MANY, replicas=1) as crowd:
            new, since, named = await replaced(own, "killed")
            took = await renewed(new, list(map(key_of, crowd.leases)), since) - named
        await crowd.check(took - lag.worst)


async def test_a_watchdog_in_a_thread_keeps_its_leases_and_the_users_clients_can_be_closed_afterwards(
    own: SentinelSet, caplog: pytest.LogCaptureFixture
) -> None:
    async with own.client() as client:
        names = [f"orders:{number}" for number in range(5)]
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


async def test_without_replicas_a_primary_that_must_have_some_renews_nothing_and_grants_nothing(
    lasting: SentinelSet, standing_still: Callable[[], None]
) -> None:
    """F13: what ends a lease at a primary that is cut off."""
    primary = lasting.primary()
    primary.operator.config_set("min-replicas-to-write", 1)
    try:
        async with lasting.client() as client, lasting.client() as other, measured_lag() as lag:
            lock = Lock(client, "orders", ttl=SHORT)
            begun = time.monotonic()
            with pytest.raises(LeaseLostError):
                async with lock:
                    await asyncio.to_thread(standing_still)
                    begun = time.monotonic()
                    await asyncio.sleep(3 * SHORT)
            # Redis looks once a second how far its replicas lag, and the last renewal may come just before it notices.
            assert_within(time.monotonic() - begun, 1 + 1 + SHORT + SLACK * 0.2 + lag.worst)
            with pytest.raises((RedisError, AcquireTimeoutError)):
                await Lock(other, "orders", ttl=SHORT).acquire(timeout=SHORT)
            resume(lasting)
            async with Lock(other, "orders", ttl=SHORT).hold(timeout=SLACK * (SHORT + 1)):
                pass
    finally:
        primary.operator.config_set("min-replicas-to-write", 0)


async def test_of_many_leases_that_no_replica_behind_sentinels_gets_none_is_granted_until_one_is_back(
    lasting: SentinelSet, standing_still: Callable[[], None]
) -> None:
    """F13: with `replicas`, nothing is granted that a failover would lose."""

    def come_back() -> None:
        resume(lasting)
        lasting.wait_until_whole()

    async with lasting.client() as client:
        await asyncio.to_thread(standing_still)
        await check_many_need_a_replica(client, come_back, [lasting.primary()])


async def test_an_idle_session_has_no_connection_to_a_server_or_a_sentinel(lasting: SentinelSet) -> None:
    tasks = asyncio.all_tasks()
    leftovers = [Leftovers(server) for server in (*lasting.servers, *lasting.sentinels)]

    def connections() -> list[str]:
        return [line for each in leftovers for line in each.new_connections()]

    async def work(client: Any) -> None:
        async with Lock(client, "orders", ttl=TTL):
            await asyncio.sleep(0.01)

    async with lasting.client() as client:
        await asyncio.gather(*(work(client) for _ in range(5)))
        assert connections()
        assert await wait_until_none(connections, lambda: tasks_beyond(tasks)) == []
