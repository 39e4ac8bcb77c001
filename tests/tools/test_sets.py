"""Sentinels' and Clusters' servers: ready when they are given, failed over, moved and healed on demand, then gone."""

import os
import time
from collections.abc import Callable, Iterator

import pytest
import redis as synchronous
from redis.exceptions import AskError, TryAgainError

from tests.support.clusters import ClusterSet, slot_of
from tests.support.lateness import SLACK, assert_within
from tests.support.leftovers import Leftovers, empty
from tests.support.sentinels import SentinelSet
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.rest]

Build = Callable[[], SentinelSet | ClusterSet]

_LONGEST_START = SLACK * 7
"""Seconds, on a machine that does much else. On a calm one Sentinels took 0.5, three groups 1.0, a Cluster 2.1."""

SLOT = slot_of("{orders}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterSet]:
    """One for all tests, each of which leaves it well."""
    with ClusterSet() as running:
        yield running


@pytest.fixture
def orders(cluster: ClusterSet) -> list[str]:
    cluster.flush()
    keys = [f"{{orders}}:{number}" for number in range(150)]
    for key in keys:
        cluster.node_of(key).operator.set(key, 1)
    return keys


def another(cluster: ClusterSet) -> RedisServer:
    return next(server for server in cluster.primaries() if server is not cluster.primary_of(SLOT))


def processes(one: SentinelSet | ClusterSet) -> list[RedisServer]:
    if isinstance(one, ClusterSet):
        return list(one.servers)
    return [server for group in one.groups for server in (*group.servers, *group.sentinels)]


@pytest.mark.parametrize(
    "build",
    [SentinelSet, pytest.param(lambda: SentinelSet(groups=3, replicas=1), marks=pytest.mark.slow), ClusterSet],
    ids=["sentinels", "three groups", "cluster"],
)
def test_a_set_starts_within_seconds_and_nothing_of_it_stays(build: Build) -> None:
    began = time.monotonic()
    one = build()
    print(f"started in {time.monotonic() - began:.2f} s")
    assert_within(time.monotonic() - began, _LONGEST_START)
    servers = processes(one)
    pids = [server.pid for server in servers]
    servers[0].pause()
    one.stop()
    one.stop()
    assert not any(server.directory.exists() for server in servers)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.smoke
def test_groups_have_nothing_in_common() -> None:
    with SentinelSet(groups=2, replicas=0, sentinels=1) as sentinels:
        first, second = sentinels.groups
        assert first is sentinels
        assert not set(first.sentinel_addresses) & set(second.sentinel_addresses)
        first.primary().operator.set("whose", "first")
        assert second.primary().operator.get("whose") is None


@pytest.mark.smoke
def test_a_slot_is_told_by_the_hash_tag() -> None:
    assert slot_of("{orders}:42") == slot_of(b"orders") == slot_of("x{orders}{y}")
    assert slot_of("123456789") == 0x31C3


def test_leftovers_are_found_on_every_node(cluster: ClusterSet) -> None:
    empty(cluster)
    leftovers = Leftovers(cluster)
    for server in cluster.primaries():
        with synchronous.Redis.from_url(server.url, client_name="forgotten") as client:
            client.ping()
            assert ["forgotten" in line for line in leftovers.new_connections()] == [True]
    for key in ("aiolocks:lock:{a}", "aiolocks:lock:{b}", "aiolocks:lock:{c}"):
        cluster.node_of(key).operator.set(key, "token 1")
    assert len({cluster.node_of(key) for key in "abc"}) == 3
    assert len(leftovers.lasting_keys()) == 3
    empty(cluster)
    assert leftovers.lasting_keys() == []


def test_a_slot_moves_with_its_keys(cluster: ClusterSet, orders: list[str]) -> None:
    old, new = cluster.primary_of(SLOT), another(cluster)
    cluster.move_slot(SLOT, new)
    assert cluster.primary_of(SLOT) is new
    assert new.operator.dbsize() == len(orders)
    assert old.operator.dbsize() == 0
    cluster.wait_until_ok()


def test_a_slot_can_be_held_open_and_single_keys_moved(cluster: ClusterSet, orders: list[str]) -> None:
    old, new = cluster.primary_of(SLOT), another(cluster)
    cluster.begin_move(SLOT, new)
    cluster.migrate(orders[:3])
    assert cluster.primary_of(SLOT) is old
    assert old.operator.get(orders[3]) == b"1"
    with pytest.raises(AskError):
        old.operator.get(orders[0])
    with pytest.raises((AskError, TryAgainError)):  # Redis 6.2 leaves it to the other end to say the latter
        old.operator.mget(orders[0], orders[3])
    cluster.end_move(SLOT)
    assert cluster.primary_of(SLOT) is new
    assert new.operator.dbsize() == len(orders)
    cluster.wait_until_ok()


@pytest.mark.faults
@pytest.mark.parametrize("mode", ["", "FORCE", "TAKEOVER"])
def test_a_replica_becomes_the_primary_on_demand(cluster: ClusterSet, mode: str) -> None:
    old = cluster.primary_of(SLOT)
    replica = cluster.replica_of(old)
    assert cluster.failover(old, mode) is replica
    assert cluster.primary_of(SLOT) is replica
    cluster.wait_until_ok()
    assert cluster.replica_of(replica) is old
