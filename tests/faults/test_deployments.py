"""Deployments that ask something of the client: passwords, TLS, names, replicas that are read, clocks, and limits."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.cluster import LoadBalancingStrategy
from redis.credentials import UsernamePasswordCredentialProvider

from aiolocks import Lease, LeaseLostError, Lock, Once, RateLimiter, Semaphore, Versioned
from aiolocks.cli import main
from tests.faults.support.asking import UNREACHABLE, Body
from tests.faults.support.kinds import Kind, make
from tests.faults.support.replacing import replaced, replicas_of
from tests.faults.support.server_clock import ServerClock
from tests.faults.support.traffic import TTL, key_of, renewed
from tests.faults.support.turns import turns
from tests.support.clients import client_at
from tests.support.clusters import ClusterSet
from tests.support.inside import link_of
from tests.support.lateness import SLACK, assert_within, in_time, measured_lag
from tests.support.network import until
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
async def test_a_lease_outlives_its_primary_and_is_handed_on(deployed: Any, tmp_path: Path) -> None:
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
        lock, versioned, once = Lock(client, "orders"), Versioned(client, "stock"), Once(client, "orders", keep=60)
        async with lock as lease, Semaphore(client, "orders", 2), RateLimiter(client, "orders", 5, per=60):
            waiting = asyncio.create_task(lock.acquire())
            await queued(lock, 1)
            assert await lease.renew()
            await lease.guard(("GET", "{orders}"))
            assert (await lock.locked(), len(await lock.holders()), len(await lock.waiters())) == (True, 1, 1)
            await versioned.write("ours", (await versioned.read())[1])
            assert [await once.run(lambda: asyncio.sleep(0, True)) for _ in range(2)] == [True, True]
            await once.forget()
            assert await once.outcome() is None
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


@pytest.mark.parametrize("closed", ["when idle", "for a new password"])
async def test_a_lease_is_kept_and_handed_on_over_new_connections(own_server: RedisServer, closed: str) -> None:
    """The server closes connections that are idle for 1 to 2 s, or has a new password sooner than the client."""
    operator: Any = own_server.operator
    operator.execute_command("ACL", "SETUSER", "app", "on", ">old", "+@all", "~*", "&*")
    login = UsernamePasswordCredentialProvider("app", "old")
    one, other = (Redis(unix_socket_path=own_server.socket_path, credential_provider=login) for _ in range(2))
    async with one, other:
        lease = await Lock(one, "orders", ttl=TTL).acquire()
        waiting = asyncio.create_task(Lock(other, "orders", ttl=TTL).acquire())
        await queued(Lock(one, "orders"), 1)
        if closed == "when idle":
            operator.config_set("timeout", "1")
        else:
            operator.execute_command("ACL", "SETUSER", "app", "resetpass", ">new")
            operator.execute_command("CLIENT", "KILL", "USER", "app")
            await until(lambda: operator.acl_log() != [])
            login.password = "new"
        async with in_time((2.2 if closed == "when idle" else 0.5) + SLACK * 0.2):
            await renewed(own_server, [key_of("orders")], time.monotonic())
        assert await lease.release()
        assert await (await waiting).release()


def listening(server: RedisServer) -> set[str]:
    return {each["id"] for each in server.operator.client_list(_type="pubsub")}


async def test_waiters_are_served_at_once_though_wake_ups_overflow_the_servers_buffer(own_server: RedisServer) -> None:
    """A list of them does so too: it raises an error, and costs no other request of the session."""
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(client_at(own_server.url)) for _ in range(11)]
        *semaphores, crowded = (Semaphore(client, "orders", 400, ttl=TTL) for client in clients)
        leases = await asyncio.gather(*(semaphores[n % 10].acquire() for n in range(400)))
        waiting = [asyncio.create_task(crowded.acquire()) for _ in leases]
        await queued(crowded, 400)
        own_server.operator.config_set("client-output-buffer-limit", "normal 32kb 0 0 pubsub 4kb 0 0")
        with pytest.raises(UNREACHABLE):
            await crowded.waiters()
        await until(lambda: len(listening(own_server)) == 1)  # its connection may still be on its way
        subscribed = listening(own_server)
        own_server.pause()  # so that all are released at the same time
        releases = [asyncio.create_task(lease.release()) for lease in leases]
        await until(lambda: all(link_of(client).written for client in clients[:-1]))
        own_server.resume()
        async with in_time(SLACK * 0.3):
            assert all(await asyncio.gather(*releases))
            later = await asyncio.gather(*waiting)
        assert not subscribed & listening(own_server)
        assert all(await asyncio.gather(*(lease.release() for lease in later)))


async def test_hundreds_of_sessions_that_reconnect_at_once_keep_leases_and_places(own_server: RedisServer) -> None:
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(Redis(unix_socket_path=own_server.socket_path)) for _ in range(200)]
        leases = await asyncio.gather(*(Lock(each, f"{n}", ttl=TTL).acquire() for n, each in enumerate(clients)))
        async with turns([Lock(each, "orders", ttl=TTL) for each in clients], tasks=1) as served:
            own_server.operator.config_set("save", "3600 1")  # so that it saves all at its end
            await asyncio.to_thread(own_server.restart)
            async with in_time(SLACK * 1.0):
                await renewed(own_server, [key_of(f"{n}") for n in range(200)], time.monotonic())
        assert served.most == 1
        assert all(await asyncio.gather(*(lease.release() for lease in leases)))
