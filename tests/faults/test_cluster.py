"""F15: nodes of a Redis Cluster are killed, stopped and replaced, and slots are moved, at once or key by key."""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import Lock, MultiLock
from tests.faults.support.traffic import NAMES, NEWCOMERS, TTL, WAITERS, key_of, promoted, renewed, traffic
from tests.support.clients import documented_rights
from tests.support.clusters import ClusterSet, slot_of
from tests.support.inside import node_hosts, polling
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.leftovers import Leftovers, tasks_beyond, wait_until_none
from tests.support.servers import RedisServer, find_binary, version_of

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.asyncio]

SLOT = slot_of(key_of("orders"))

SHORT = 2.4
"""TTL of a lease that must have been renewed while a slot was open."""

OPEN = 3.0
"""Seconds for which a slot is held open."""

MOVED_FOR = 5.0
"""Seconds for which a slot is moved to and fro."""

MANY = 100


@pytest.fixture(scope="module")
def running() -> Iterator[ClusterSet]:
    with ClusterSet() as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ClusterSet) -> Iterator[ClusterSet]:
    """The one of all tests; whatever one of them breaks is mended here."""
    yield running
    for server in running.servers:
        if not server.running:
            server.restart()
        server.resume()
    running.wait_until_ok()
    running.flush()


@pytest_asyncio.fixture
async def client(cluster: ClusterSet) -> AsyncIterator[Any]:
    async with cluster.client() as client:
        yield client


@pytest_asyncio.fixture
async def other(cluster: ClusterSet) -> AsyncIterator[Any]:
    async with cluster.client() as client:
        yield client


def kill(cluster: ClusterSet, primary: RedisServer) -> None:
    primary.kill()
    cluster.wait_for_primary(SLOT, other_than=primary)


def stop(cluster: ClusterSet, primary: RedisServer) -> None:
    primary.pause()
    cluster.wait_for_primary(SLOT, other_than=primary)


def fail_over(cluster: ClusterSet, primary: RedisServer) -> None:
    cluster.failover(primary)


def take_over(cluster: ClusterSet, primary: RedisServer) -> None:
    cluster.failover(primary, "TAKEOVER")


Outage = Callable[[ClusterSet, RedisServer], None]


async def replaced(cluster: ClusterSet, outage: Outage) -> tuple[RedisServer, float, float]:
    """Return the new primary of `SLOT`, a moment just before it was one, and when the others knew."""
    old = await asyncio.to_thread(cluster.primary_of, SLOT)
    new = await asyncio.to_thread(cluster.replica_of, old)
    since, _ = await asyncio.gather(
        asyncio.to_thread(promoted, [new]), asyncio.to_thread(outage, cluster, old)
    )  # fmt: skip
    return new, since, time.monotonic()


def at(cluster: ClusterSet, server: RedisServer, keys: Iterable[str]) -> list[str]:
    """Return those of the keys whose slots *server* has."""
    return [key for key in keys if cluster.node_of(key) is server]


@pytest.mark.slow
@pytest.mark.parametrize("outage", [kill, stop, fail_over, take_over])
async def test_when_a_node_is_replaced_leases_are_kept_and_waiters_and_newcomers_are_served(
    cluster: ClusterSet, client: Any, outage: Outage
) -> None:
    async with measured_lag() as lag:
        async with traffic(client) as crowd:
            new, since, known = await replaced(cluster, outage)
            keys = await asyncio.to_thread(at, cluster, new, map(key_of, crowd.leases))
            took = await renewed(new, keys, since) - known
        print(f"renewed after {took:.2f} s; the longest that a newcomer waited: {crowd.longest:.2f} s")
        assert keys
        assert crowd.problems == []
        assert_within(took, SLACK * 1.0 + lag.worst)
        # What a primary grants in the moment before it knows that another took over, unasked, is lost (L3).
        assert crowd.told <= (NAMES if outage is take_over else 0)
        assert crowd.newcomers_told <= (NEWCOMERS if outage is take_over else 0)
        assert crowd.served + crowd.told == NAMES * WAITERS
        assert await crowd.all_released()


@pytest.mark.slow
@pytest.mark.timeout(150)
async def test_with_a_replica_that_has_each_grant_a_killed_node_of_a_cluster_takes_nothing_with_it() -> None:
    """Done for 100 names with 20 waiters each: all are served, and nobody loses a lease."""
    own = await asyncio.to_thread(ClusterSet, replicas=6)  # else the new primary would have none
    client: Any
    try:
        async with own.client() as client, measured_lag() as lag:
            async with traffic(client, names=MANY, replicas=1) as crowd:
                old = await asyncio.to_thread(own.primary_of, SLOT)
                replicas = [server for server in own.servers if server not in own.primaries()]
                since, _ = await asyncio.gather(
                    asyncio.to_thread(promoted, replicas), asyncio.to_thread(kill, own, old)
                )  # fmt: skip
                known = time.monotonic()
                new = await asyncio.to_thread(own.primary_of, SLOT)
                keys = await asyncio.to_thread(at, own, new, map(key_of, crowd.leases))
                took = await renewed(new, keys, since) - known
            print(f"renewed after {took:.2f} s; newcomers: {crowd.newcomers}, the longest waited {crowd.longest:.2f} s")
            print(f"{crowd.served} served; {len(crowd.problems)} problems")
            assert crowd.problems == []
            assert (crowd.told, crowd.newcomers_told) == (0, 0)
            assert crowd.served == MANY * WAITERS
            assert_within(took, SLACK * 1.0 + lag.worst)
            assert await crowd.all_released()
    finally:
        await asyncio.to_thread(own.stop)


class Turns:
    """Tasks of several clients that take a lock in turns."""

    def __init__(self) -> None:
        self.count = 0
        self.problems: list[str] = []
        self._inside = False

    async def take(self, client: Any) -> None:
        while True:
            try:
                async with Lock(client, "orders", ttl=TTL).hold(timeout=20):
                    if self._inside:
                        self.problems.append("two hold it")
                    self._inside = True
                    try:
                        await asyncio.sleep(0.001)
                    finally:
                        self._inside = False
                self.count += 1
            except Exception as error:
                self.problems.append(repr(error))

    async def go_on(self) -> None:
        """Return when all tasks have had another turn, about."""
        wanted = self.count + 20
        async with asyncio.timeout(10):
            while self.count < wanted:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def turns(*clients: Any) -> AsyncIterator[Turns]:
    """Have a lock taken in turns while the block runs."""
    busy = Turns()
    tasks = [asyncio.create_task(busy.take(client)) for client in clients for _ in range(5)]
    try:
        await busy.go_on()
        yield busy
        await busy.go_on()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.mark.slow
@pytest.mark.parametrize("flushed", [False, True], ids=["scripts known", "SCRIPT FLUSH"])
async def test_a_busy_lock_whose_slot_moves_to_and_fro_is_handed_on_and_no_waiter_polls_afterwards(
    cluster: ClusterSet, client: Any, other: Any, flushed: bool
) -> None:
    def move() -> None:
        begun = time.monotonic()
        for to in itertools.cycle(cluster.primaries()):
            if to is not cluster.primary_of(SLOT):
                cluster.move_slot(SLOT, to)
            if flushed:
                for server in cluster.primaries():
                    server.operator.script_flush()
            if time.monotonic() - begun > MOVED_FOR:
                return
            time.sleep(0.3)

    async with turns(client, other) as busy:
        before = busy.count
        await asyncio.to_thread(move)
        print(f"{busy.count - before} turns")
        async with asyncio.timeout(10):
            while any(polling(client, other)):
                await asyncio.sleep(0.01)
        assert polling(client, other)
    assert busy.problems == []


LINE = "a waiters' line"


@pytest.mark.slow
@pytest.mark.parametrize("first", ["the holder", "the fence", "the queue", LINE])
async def test_no_lease_is_lost_in_a_slot_that_is_held_open_whichever_key_goes_first(
    cluster: ClusterSet, client: Any, other: Any, first: str
) -> None:
    async with waiting_at_an_open_slot(cluster, client, other, first) as (lease, waiting):
        await asyncio.sleep(OPEN)
        assert lease.held
        await asyncio.to_thread(cluster.end_move, SLOT)
        async with measured_lag() as lag:
            closed = time.monotonic()
            assert await lease.release()
            await asyncio.gather(*waiting)
            took = time.monotonic() - closed
    print(f"granted {took:.2f} s after the slot was closed")
    assert_within(took, SLACK * 1.5 + lag.worst)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["the holder", "the queue", LINE])
async def test_what_is_released_in_a_slot_that_is_held_open_is_handed_on_when_it_closes(
    cluster: ClusterSet, client: Any, other: Any, first: str
) -> None:
    """A script names the line of the first in the queue itself, and so may break off half-way."""
    async with waiting_at_an_open_slot(cluster, client, other, first) as (lease, waiting):
        releasing = asyncio.create_task(lease.release())
        await asyncio.sleep(OPEN / 2)
        await asyncio.to_thread(cluster.end_move, SLOT)
        async with measured_lag() as lag:
            closed = time.monotonic()
            await releasing
            await asyncio.gather(*waiting)
            took = time.monotonic() - closed
    print(f"granted {took:.2f} s after the slot was closed")
    assert_within(took, SLACK * 1.5 + lag.worst)


@asynccontextmanager
async def waiting_at_an_open_slot(
    cluster: ClusterSet, client: Any, other: Any, first: str
) -> AsyncIterator[tuple[Any, list["asyncio.Task[None]"]]]:
    """Hold a lock for which two sessions wait, and open its slot, of whose keys the *first* has gone."""

    async def wait(one: Any) -> None:
        async with Lock(one, "orders", ttl=TTL).hold(timeout=20):
            pass

    lease = await Lock(client, "orders", ttl=SHORT).acquire()
    waiting = [asyncio.create_task(wait(one)) for one in (client, other) for _ in range(2)]
    async with asyncio.timeout(5):
        while (await Lock(other, "orders").statistics()).waiting < len(waiting):
            await asyncio.sleep(0.01)

    def open_slot() -> None:
        source = cluster.primary_of(SLOT)
        cluster.begin_move(SLOT, next(server for server in cluster.primaries() if server is not source))
        lines = [key for key in cluster.keys_to_move(SLOT) if b":q:" in key]
        assert len(lines) == 2
        key = key_of("orders")
        keys: dict[str, str | bytes] = {
            "the holder": key,
            "the fence": f"{key}:fence",
            "the queue": f"{key}:queue",
            LINE: lines[0],
        }
        assert source.operator.exists(keys[first])
        cluster.migrate([keys[first]])

    await asyncio.to_thread(open_slot)
    try:
        yield lease, waiting
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_a_node_comes_with_the_slot_of_a_busy_lock_and_goes_again(
    cluster: ClusterSet, client: Any, other: Any
) -> None:
    old = cluster.primary_of(SLOT)
    async with turns(client, other) as busy:
        new = await asyncio.to_thread(cluster.add_primary)
        await asyncio.to_thread(cluster.move_slot, SLOT, new)
        await busy.go_on()
        await asyncio.to_thread(cluster.move_slot, SLOT, old)
        await asyncio.to_thread(cluster.wait_until_ok)
        await asyncio.to_thread(cluster.remove, new)
        await busy.go_on()
    assert busy.problems == []


@pytest.mark.parametrize("told", [True, False], ids=["the documented rights", "none to channels of shards"])
@pytest.mark.skipif(version_of(find_binary()) < (7,), reason="channels of shards came with Redis 7")
async def test_waiters_with_the_readmes_rights_are_woken_and_without_channel_rights_they_poll(
    cluster: ClusterSet, caplog: pytest.LogCaptureFixture, told: bool
) -> None:
    rights = ["on", ">secret", *documented_rights(cluster=True), *([] if told else ["-ssubscribe"])]
    for server in cluster.servers:
        operator: Any = server.operator
        operator.execute_command("ACL", "SETUSER", "restricted", "reset", *rights)
    with caplog.at_level(logging.WARNING, logger="aiolocks"):
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(cluster.client(username="restricted", password="secret"))
                for _ in range(2)
            ]
            async with turns(*clients) as busy:
                assert polling(*clients)
                assert any(polling(*clients)) is not told
    assert busy.problems == []
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (0 if told else len(clients)), warnings
    assert all("lacks the rights +ssubscribe" in line for line in warnings)


async def test_a_lease_that_ends_in_an_open_slot_for_want_of_the_right_to_asking_is_told_why(
    cluster: ClusterSet, caplog: pytest.LogCaptureFixture
) -> None:
    for server in cluster.servers:
        operator: Any = server.operator
        operator.execute_command(
            "ACL", "SETUSER", "unasking", "reset", "on", ">secret", *documented_rights(cluster=True), "-asking"
        )
    one: Any
    async with cluster.client(username="unasking", password="secret") as one:
        leases = [await Lock(one, name, ttl=SHORT).acquire() for name in ("orders", "{orders}:other")]
        source = await asyncio.to_thread(cluster.primary_of, SLOT)
        to = next(server for server in cluster.primaries() if server is not source)
        await asyncio.to_thread(cluster.begin_move, SLOT, to)
        await asyncio.to_thread(cluster.migrate, [key_of("orders")])
        assert await asyncio.wait_for(leases[0].wait_lost(), 2 * SHORT)
        assert leases[1].held
        await asyncio.to_thread(cluster.end_move, SLOT)
        assert await leases[1].release()
    warnings = [record.getMessage() for record in caplog.records if "right" in record.getMessage()]
    assert len(warnings) == 1, warnings
    assert "lacks the right +asking" in warnings[0]


async def test_a_multilock_of_names_on_all_nodes_outlives_one_of_them(
    cluster: ClusterSet, client: Any, other: Any
) -> None:
    names = ["orders", *(f"account:{number}" for number in range(8))]
    keys = {name: f"aiolocks:multi:{{{name}}}" for name in names}
    nodes = {await asyncio.to_thread(cluster.node_of, key) for key in keys.values()}
    assert len(nodes) == 3
    async with MultiLock(client, names, ttl=SHORT) as lease:
        waiting = asyncio.create_task(MultiLock(other, names[:5], ttl=TTL).acquire())
        await replaced(cluster, take_over)
        await asyncio.sleep(SHORT)  # by now it lasts only because the new primary has renewed it
        assert lease.held
        assert not waiting.done()
    later = await asyncio.wait_for(waiting, 2 * TTL)
    assert all(later.fencing_tokens[name] > lease.fencing_tokens[name] for name in names[:5])
    assert await later.release()


async def test_an_idle_session_has_no_connection_to_any_node_and_clients_can_be_closed(cluster: ClusterSet) -> None:
    tasks = asyncio.all_tasks()
    client: Any
    async with cluster.client() as client:
        leftovers = [Leftovers(server) for server in cluster.servers]

        def connections() -> list[str]:
            return [line for each in leftovers for line in each.new_connections()]

        async def work(name: str) -> None:
            async with Lock(client, name, ttl=TTL):
                await asyncio.sleep(0.01)

        await asyncio.gather(*(work(name) for name in "abc" for _ in range(3)))
        assert connections()
        assert await wait_until_none(connections, lambda: tasks_beyond(tasks)) == []
        async with Lock(client, "orders", ttl=TTL):
            pass
    assert await wait_until_none(connections, lambda: tasks_beyond(tasks)) == []


async def test_a_lease_that_no_replica_of_a_node_gets_is_refused_and_leaves_nothing(
    cluster: ClusterSet, client: Any
) -> None:
    primary = await asyncio.to_thread(cluster.primary_of, SLOT)
    replica = await asyncio.to_thread(cluster.replica_of, primary)
    lock = Lock(client, "orders", replicas=1, ttl=TTL)
    replica.pause()
    with pytest.raises(RedisTimeoutError, match="0 of 1 replicas"):
        await lock.acquire()
    assert Leftovers(primary).lasting_keys() == []
    replica.resume()
    async with lock.hold(timeout=TTL):
        assert primary.operator.exists(key_of("orders"))
    assert Leftovers(primary).lasting_keys() == []


async def test_of_many_leases_that_no_replica_of_a_node_gets_none_is_granted_until_one_is_back(
    cluster: ClusterSet, client: Any
) -> None:
    primaries = await asyncio.to_thread(cluster.primaries)
    replicas = [server for server in cluster.servers if server not in primaries]
    for replica in replicas:
        replica.pause()
    refused = await asyncio.gather(
        *(Lock(client, f"cut:{number}", replicas=1, ttl=TTL).acquire() for number in range(MANY)),
        return_exceptions=True,
    )
    for replica in replicas:
        replica.resume()
    assert {type(one) for one in refused} == {RedisTimeoutError}
    assert [key for primary in primaries for key in Leftovers(primary).lasting_keys()] == []
    await asyncio.to_thread(cluster.wait_until_ok)
    leases = await asyncio.gather(
        *(Lock(client, f"cut:{number}", replicas=1, ttl=TTL).acquire() for number in range(MANY))
    )
    assert await asyncio.gather(*(lease.release() for lease in leases)) == [True] * MANY


@pytest.mark.skipif(version_of(find_binary()) < (7,), reason="nodes have had names since Redis 7")
async def test_nodes_that_go_by_their_names_are_found_by_these() -> None:
    """As with TLS, whose certificates are for names."""
    options = {"cluster-announce-hostname": "localhost", "cluster-preferred-endpoint-type": "hostname"}
    running = await asyncio.to_thread(ClusterSet, replicas=0, options=options)
    one: Any
    try:
        async with running.client() as one, running.client() as two:
            for number in range(6):
                lease = await Lock(one, f"orders:{number}", ttl=TTL).acquire()
                waiting = asyncio.create_task(Lock(two, f"orders:{number}", ttl=TTL).acquire())
                await asyncio.sleep(0.05)
                await lease.release()
                await (await asyncio.wait_for(waiting, 5)).release()
            assert node_hosts(one) == {"localhost"}
    finally:
        await asyncio.to_thread(running.stop)
