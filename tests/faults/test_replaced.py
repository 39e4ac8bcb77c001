"""F13 to F15: primaries behind Sentinels and nodes of a Cluster are killed, stopped or replaced on purpose."""

import asyncio
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import Lock
from tests.faults.support.replacing import Outage, Servers, keys_at, primary_of, replaced, replicas_of
from tests.faults.support.traffic import MANY, TTL, Traffic, renewed, traffic
from tests.support.clusters import ClusterSet
from tests.support.lateness import measured_lag
from tests.support.leftovers import Leftovers, tasks_beyond, wait_until_none
from tests.support.sentinels import SentinelSet

LOSES: dict[str, Outage] = {"sentinel": "failed over", "cluster": "taken over"}
"""After which a grant of the last moment is lost (L3): the old primary hears of the new one up to a second later."""

OUTAGES = [(on, outage) for on in LOSES for outage in get_args(Outage) if (on, outage) != ("sentinel", "taken over")]


@pytest.fixture(params=LOSES)
def servers_of_a_kind(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Three servers that Sentinels watch, of this test alone; or the Cluster of all tests here."""
    if request.param == "cluster":
        yield request.getfixturevalue("cluster")
    else:
        with SentinelSet() as own:
            yield own


async def renewed_by_the_new_primary(servers: Servers, outage: Outage, crowd: Traffic) -> float:
    """Return the seconds from when the new primary was known until it had renewed all that is held there."""
    new, since, known = await replaced(servers, outage)
    keys = await asyncio.to_thread(keys_at, servers, new, crowd.leases)
    assert keys
    return await renewed(new, keys, since) - known


@pytest.mark.slow
@pytest.mark.parametrize(("servers_of_a_kind", "outage"), OUTAGES, indirect=["servers_of_a_kind"])
async def test_when_a_primary_is_replaced_leases_are_kept_and_waiters_and_newcomers_are_served(
    servers_of_a_kind: Servers, outage: Outage
) -> None:
    client: Any
    on = "cluster" if isinstance(servers_of_a_kind, ClusterSet) else "sentinel"
    async with servers_of_a_kind.client() as client, measured_lag() as lag:
        async with traffic(client) as crowd:
            took = await renewed_by_the_new_primary(servers_of_a_kind, outage, crowd)
        await crowd.check(took - lag.worst, some_lost=outage == LOSES[on])


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("kind", [SentinelSet, ClusterSet])
async def test_with_a_replica_that_has_each_grant_a_killed_primary_takes_nothing_with_it(kind: Any) -> None:
    """Done for 100 names with 20 waiters each: all are served, and none loses a lease."""
    more = {"replicas": 6} if kind is ClusterSet else {}  # of a Cluster the new primary would have none
    with kind(**more) as servers:
        async with servers.client() as client, measured_lag() as lag:
            async with traffic(client, names=MANY, replicas=1) as crowd:
                took = await renewed_by_the_new_primary(servers, "killed", crowd)
            await crowd.check(took - lag.worst)


async def test_of_leases_that_no_replica_gets_none_is_granted_until_one_is_back(servers_of_a_kind: Servers) -> None:
    """F13: with `replicas`, nothing is granted that a failover would lose."""
    client: Any
    servers = servers_of_a_kind
    primaries = servers.primaries() if isinstance(servers, ClusterSet) else [primary_of(servers)]
    replicas = await asyncio.to_thread(replicas_of, servers)

    def asked(client: Any) -> list[Any]:
        return [Lock(client, f"cut:{number}", replicas=1, ttl=TTL).acquire() for number in range(MANY)]

    def come_back() -> None:
        for replica in replicas:
            replica.resume()
        servers.wait_until_ok() if isinstance(servers, ClusterSet) else servers.wait_until_whole()

    for replica in replicas:
        replica.pause()
    async with servers.client() as client:
        refused = await asyncio.gather(*asked(client), return_exceptions=True)
        assert {type(one) for one in refused} == {RedisTimeoutError}
        assert all("0 of 1 replicas" in str(one) for one in refused)
        assert [key for primary in primaries for key in Leftovers(primary).lasting_keys()] == []
        await asyncio.to_thread(come_back)
        leases = await asyncio.gather(*asked(client))
        assert await asyncio.gather(*(lease.release() for lease in leases)) == [True] * MANY


async def test_an_idle_session_has_no_connection_to_a_server_or_a_sentinel_and_clients_can_be_closed(
    servers_of_a_kind: Servers,
) -> None:
    client: Any
    tasks = asyncio.all_tasks()
    async with servers_of_a_kind.client() as client:
        sentinels = servers_of_a_kind.sentinels if isinstance(servers_of_a_kind, SentinelSet) else []
        leftovers = [Leftovers(server) for server in (*servers_of_a_kind.servers, *sentinels)]

        def connections() -> list[str]:
            return [line for each in leftovers for line in each.new_connections()]

        async def work(name: str) -> None:
            async with Lock(client, name, ttl=TTL):
                await asyncio.sleep(0.01)

        await asyncio.gather(*(work(name) for name in "abc" for _ in range(3)))
        assert connections()
        assert await wait_until_none(connections, lambda: tasks_beyond(tasks)) == []
        await work("a")
    assert await wait_until_none(connections, lambda: tasks_beyond(tasks)) == []
