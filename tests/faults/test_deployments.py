"""Deployments that ask something of the client: passwords, TLS, names of nodes, replicas that are read, and clocks."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.cluster import LoadBalancingStrategy

from aiolocks import Lease, LeaseLostError, Lock, RateLimiter, Semaphore, Versioned
from aiolocks.cli import main
from tests.faults.support.asking import Body
from tests.faults.support.kinds import Kind, make
from tests.faults.support.replacing import replaced, replicas_of
from tests.faults.support.server_clock import ServerClock
from tests.faults.support.traffic import TTL, key_of, renewed
from tests.support.clients import client_at
from tests.support.clusters import ClusterSet
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.primitives import queued
from tests.support.sentinels import SentinelSet
from tests.support.servers import RedisServer, find_binary, version_of
from tests.support.tls import TlsServer, tls_options

pytestmark = pytest.mark.slow
since_7 = pytest.mark.skipif(version_of(find_binary()) < (7,), reason="nodes have had names since Redis 7")

Deployed = tuple[SentinelSet | ClusterSet, Any, Any]
"""The servers, and two clients."""


@contextmanager
def sentinels_with_a_password(_: Path) -> Iterator[Deployed]:
    """The servers have another. One client is made by a URL, the other by redis-py."""
    with SentinelSet() as servers:
        for asked, words in (
            (servers.servers, "ACL SETUSER app on >theirs +@all ~* &*"),
            (servers.sentinels, "SENTINEL CONFIG SET sentinel-pass guard"),
            (servers.sentinels, "ACL SETUSER default resetpass >guard"),
        ):
            for server in asked:
                operator: Any = server.operator
                operator.execute_command(*words.split())
        url = servers.url.replace("//", "//app:theirs@") + "?sentinel_password=guard"
        yield servers, client_at(url), servers.client({"password": "guard"}, username="app", password="theirs")


@contextmanager
def over_tls(kind: Any, directory: Path) -> Iterator[Deployed]:
    """There is no other way in, nor between the servers."""
    tls = TlsServer(directory)
    tls.server.stop()
    tls.present(tls.authority, "127.0.0.1")
    options = {**tls_options(directory, "{port}"), "port": "0", "tls-replication": "yes", "tls-cluster": "yes"}
    with kind(options=options) as servers:
        url = f"{servers.url.replace('redis+', 'rediss+')}?ssl_ca_certs={directory / 'ca.pem'}"
        yield servers, client_at(url), client_at(url)


@contextmanager
def behind_a_map(_: Path) -> Iterator[Deployed]:
    """The nodes go by a name that leads nowhere from outside."""
    names = {"cluster-announce-hostname": "inside.invalid", "cluster-preferred-endpoint-type": "hostname"}
    hosts = {"inside.invalid": "127.0.0.1"}
    with ClusterSet(options=names) as servers:
        one, other = (servers.client(address_remap=lambda at: (hosts[at[0]], at[1])) for _ in range(2))
        yield servers, one, other


@pytest.mark.parametrize("deployed", [
    pytest.param(sentinels_with_a_password, id="Sentinels with a password"),
    pytest.param(partial(over_tls, SentinelSet), id="Sentinels over TLS"),
    pytest.param(partial(over_tls, ClusterSet), id="Cluster over TLS"),
    pytest.param(behind_a_map, id="Cluster behind a map", marks=since_7),
])  # fmt: skip
async def test_a_lease_outlives_its_primary_and_is_handed_on(
    deployed: Callable[[Path], AbstractContextManager[Deployed]], tmp_path: Path
) -> None:
    with deployed(tmp_path) as (servers, one, other):
        async with one as holder, other as waiter, measured_lag() as lag:
            lease = await Lock(holder, "orders", ttl=TTL).acquire()
            waiting = asyncio.create_task(Lock(waiter, "orders", ttl=TTL).acquire(timeout=40))
            await queued(Lock(holder, "orders"), 1)
            new, since, known = await replaced(servers, "failed over")
            took = await renewed(new, [key_of("orders")], since) - known
            # On a Cluster, a session that asks nothing else learns of it when it renews.
            assert_within(took, 1.1 * TTL / 3 + SLACK * 0.2 + lag.worst)
            begun = time.monotonic()
            assert await lease.release()
            later = await waiting
            assert_within(time.monotonic() - begun, SLACK * 1.0 + lag.worst)
            assert later.fencing_token > lease.fencing_token
            assert await later.release()


async def test_nothing_is_read_from_a_replica_though_the_client_reads_there(cluster: ClusterSet) -> None:
    def reads_at(servers: list[RedisServer]) -> set[str]:
        run = set[str]().union(*(server.operator.info("commandstats") for server in servers))
        return run & {f"cmdstat_{name}" for name in ("eval", "evalsha", "get", "ssubscribe")}

    async with cluster.client(load_balancing_strategy=LoadBalancingStrategy.RANDOM_REPLICA) as client:
        lock, versioned = Lock(client, "orders"), Versioned(client, "stock")
        async with lock as lease, Semaphore(client, "orders", 2), RateLimiter(client, "orders", 5, per=60):
            waiting = asyncio.create_task(lock.acquire())
            await queued(lock, 1)
            assert await lease.renew()
            await lease.guard(("GET", "{orders}"))
            assert (await lock.locked(), len(await lock.holders()), len(await lock.waiters())) == (True, 1, 1)
            await versioned.write("ours", (await versioned.read())[1])
        assert await (await waiting).release()
        replicas = replicas_of(cluster)
        assert reads_at(cluster.primaries()) >= {"cmdstat_evalsha", "cmdstat_ssubscribe"}
        assert reads_at(replicas) == set()
        await client.get("{orders}")
        assert reads_at(replicas) == {"cmdstat_get"}


KINDS: tuple[Kind, ...] = (Lock, Semaphore)


async def take_a_turn(kind: Kind, client: Any) -> tuple[int, float]:
    async with make(kind, client, "orders", ttl=TTL) as lease:
        return lease.fencing_token, time.monotonic()


async def stopped(lease: Lease) -> float:
    body = Body()
    with pytest.raises(LeaseLostError):
        async with lease:
            await body.work(60)
    return body.ended_at


@pytest.mark.timeout(120)
@pytest.mark.parametrize("skew", [20.0, -20.0], ids=["ahead", "behind"])
@pytest.mark.parametrize("deployment", [SentinelSet, ClusterSet])
async def test_by_a_promoted_replicas_clock_leases_end_early_or_those_of_the_dead_last_longer(
    deployment: Any, skew: float, clock: ServerClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """L4: early, two hold until the first renews. Longer by the skew, but no semaphore's: no score is so far ahead."""
    clock.step(skew)
    with deployment(replica_environment=clock.environment) as servers:
        await asyncio.to_thread(main, ["doctor", "--json", "--url", servers.url, "--ttl", str(TTL)])
        checks = [one for one in json.loads(capsys.readouterr().out)["checks"] if one["check"] == "replica clocks"]
        apart = [abs(seconds - 20) for one in checks for seconds in one["figures"]["apart_s"].values()]
        assert (max(apart) < 10, {one["verdict"] for one in checks}) == (True, {"warning"})
        async with servers.client() as one, servers.client() as other, servers.client() as late, measured_lag() as lag:
            longer = await Lock(one, "orders", ttl=3 * abs(skew), prefix="longer:").acquire()
            begun = time.monotonic()
            leases = [await make(kind, one, "orders", ttl=TTL, renew=skew > 0).acquire() for kind in KINDS]
            bodies = [asyncio.create_task(stopped(lease)) for lease in leases if skew > 0]
            waiters = [asyncio.create_task(take_a_turn(kind, other)) for kind in KINDS]
            for kind in KINDS:
                await queued(make(kind, other, "orders", ttl=TTL), 1)
            _, _, known = await replaced(servers, "failed over")
            newcomers = [asyncio.create_task(take_a_turn(kind, late)) for kind in KINDS]
            grants = list(zip(await asyncio.gather(*waiters), await asyncio.gather(*newcomers), strict=True))
            for ((_, granted), _), ended in zip(grants, await asyncio.gather(*bodies), strict=False):
                print(f"two held for {ended - granted:.3f} s, until {ended - known:.3f} s after the failover")
                assert_within(max(granted, ended) - known, 1.1 * TTL / 3 + SLACK * 0.2 + lag.worst)
            assert await longer.release(), "a lease that has more time left than the skew outlives it"
    for kind, lease, ((fence, granted), (later, _)) in zip(KINDS, leases, grants, strict=True):
        assert lease.fencing_token < min(fence, later)
        if skew < 0:
            assert_within(known - begun, TTL - 1 + lag.worst, "as the dead holder's lease must last until then")
            assert fence < later, "a newcomer does not overtake a waiter"
            assert granted - begun > (-skew if kind is Lock else TTL)
            assert_within(granted - (begun - skew if kind is Lock else known), TTL + SLACK * 0.5 + lag.worst)
