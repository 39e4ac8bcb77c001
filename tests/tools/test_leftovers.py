"""What a test left behind is found, on every node of a Cluster, and nothing else is."""

import asyncio

import pytest
import redis as synchronous
from redis.asyncio import Redis

from tests.support.clusters import ClusterSet
from tests.support.leftovers import Leftovers, empty, is_residue, tasks_beyond, wait_until_none
from tests.support.servers import RedisServer

RESIDUE = [
    b"aiolocks:lock:{orders}:fence", b"aiolocks:semaphore:{scraper}:meta", b"aiolocks:lock:{orders}:ticket",
    b"aiolocks:lock:{orders}:t:\x00}\xff", b"aiolocks:lock:{a:q:b}:fence", b"plain:fence",
]  # fmt: skip
LIVE = [
    b"aiolocks:lock:{orders}", b"aiolocks:lock:{orders:fence}", b"aiolocks:lock:{orders:ticket}",
    b"aiolocks:lock:{a:t:b}", b"aiolocks:lock:{orders}:queue", b"aiolocks:lock:{orders}:q:0af3", b"plain",
]  # fmt: skip


async def test_fences_metas_tickets_and_tombstones_are_residue_but_holders_and_queues_are_not() -> None:
    assert [key for key in [*RESIDUE, *LIVE] if is_residue(key)] == RESIDUE


@pytest.fixture
def check(server: RedisServer) -> Leftovers:
    """A second check, inside of the one that every test gets."""
    return Leftovers(server)


async def test_a_live_key_and_residue_without_a_ttl_are_left_over(check: Leftovers, redis: Redis) -> None:
    await redis.set("test:counter", 7)  # the test's own
    await redis.set("aiolocks:lock:{a}", "token 1", px=60_000)
    assert ["live key: b'aiolocks:lock:{a}'" in line for line in check.lasting_keys()] == [True]
    await redis.delete("aiolocks:lock:{a}")
    await redis.set("aiolocks:lock:{a}:fence", 7)
    assert check.lasting_keys() == ["residue without a TTL: b'aiolocks:lock:{a}:fence' (PTTL -1)"]
    await redis.pexpire("aiolocks:lock:{a}:fence", 60_000)
    assert check.lasting_keys() == []


async def test_a_connection_or_task_that_goes_on_is_left_over(check: Leftovers, server: RedisServer) -> None:
    known = asyncio.all_tasks()
    other = synchronous.Redis(unix_socket_path=server.socket_path, client_name="forgotten")
    other.ping()
    task = asyncio.create_task(asyncio.sleep(60), name="forgotten")
    with synchronous.Redis(unix_socket_path=server.socket_path, client_name="sentinel-0af3-cmd") as sentinel:
        sentinel.ping()  # which may connect when it likes
        assert ["forgotten" in line for line in check.new_connections()] == [True]
        assert ["forgotten" in line for line in tasks_beyond(known)] == [True]
    other.close()
    task.cancel()
    assert await wait_until_none(check.new_connections, lambda: tasks_beyond(known)) == []
    assert await wait_until_none(list, lambda: ["there it is"]) == ["there it is"], "reported when patience ends"


@pytest.mark.rest
async def test_leftovers_are_found_on_every_node() -> None:
    with ClusterSet(replicas=0) as cluster:
        leftovers = Leftovers(cluster)
        for node in cluster.primaries():
            with synchronous.Redis.from_url(node.url, client_name="forgotten") as client:
                client.ping()
                assert ["forgotten" in line for line in leftovers.new_connections()] == [True]
        for name in "abc":
            cluster.node_of(name).operator.set(f"aiolocks:lock:{{{name}}}", "token 1")
        assert len({cluster.node_of(name) for name in "abc"}) == len(leftovers.lasting_keys()) == 3
        empty(cluster)
        assert leftovers.lasting_keys() == []


@pytest.mark.leaves_residue
@pytest.mark.parametrize("turn", ["first", "second"])
async def test_the_marker_lets_keys_stay_and_the_next_test_finds_an_empty_server(redis: Redis, turn: str) -> None:
    assert await redis.dbsize() == 0, turn
    await redis.set("aiolocks:lock:{a}:fence", 7)
