"""F15: slots of a Redis Cluster are moved, at once or key by key, and nodes come and go."""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from aiolocks import Lock, MultiLock
from tests.faults.support.replacing import SLOT, replaced
from tests.faults.support.traffic import TTL, key_of
from tests.faults.support.turns import turns
from tests.support.clients import documented_rights
from tests.support.clusters import ClusterSet
from tests.support.inside import polling
from tests.support.lateness import SLACK, in_time
from tests.support.network import until
from tests.support.primitives import queued
from tests.support.servers import find_binary, version_of

SHORT = 2.4
"""TTL of a lease that must have been renewed while a slot was open."""

OPEN = 3.0
"""Seconds for which a slot is held open."""

MOVED_FOR = 5.0
"""Seconds for which a slot is moved to and fro."""


@pytest_asyncio.fixture
async def client(cluster: ClusterSet) -> AsyncIterator[Any]:
    async with cluster.client() as client:
        yield client


@pytest_asyncio.fixture
async def other(cluster: ClusterSet) -> AsyncIterator[Any]:
    async with cluster.client() as client:
        yield client


@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=pytest.mark.slow) for how in ("key by key", "SCRIPT FLUSH")), "at once"]
)
async def test_a_busy_lock_whose_slot_moves_to_and_fro_is_handed_on_and_no_waiter_polls_afterwards(
    cluster: ClusterSet, client: Any, other: Any, how: str
) -> None:
    if how == "at once" and version_of(find_binary()) < (9,):
        pytest.skip("only Valkey 9 moves slots at once")

    def move() -> None:
        begun = time.monotonic()
        for to in itertools.cycle(cluster.primaries()):
            if to is not cluster.primary_of(SLOT):
                cluster.move_slot(SLOT, to, at_once=how == "at once")
            if how == "SCRIPT FLUSH":
                for server in cluster.primaries():
                    server.operator.script_flush()
            if time.monotonic() - begun > MOVED_FOR:
                return
            time.sleep(0.3)

    async with turns(locks_of(client, other)) as busy:
        await asyncio.to_thread(move)
        await until(lambda: not any(polling(client, other)))
        assert polling(client, other)
    assert busy.most == 1


LINE = "a waiters' line"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "released"),
    [*itertools.product(["the holder", "the queue", LINE], ["afterwards", "meanwhile"]), ("the fence", "afterwards")],
)
async def test_in_a_slot_that_is_held_open_no_lease_is_lost_and_what_is_released_is_handed_on_when_it_closes(
    cluster: ClusterSet, client: Any, other: Any, first: str, released: str
) -> None:
    """A script names the line of the first in the queue itself, and so may break off half-way."""
    async with waiting_at_an_open_slot(cluster, client, other, first) as (lease, waiting):
        releasing = asyncio.create_task(lease.release()) if released == "meanwhile" else None
        if releasing is None:
            await asyncio.sleep(OPEN)
            assert lease.held
        else:
            await asyncio.sleep(OPEN / 2)
        await asyncio.to_thread(cluster.end_move, SLOT)
        async with in_time(SLACK * 1.5):
            if releasing is None:
                assert await lease.release()
            else:
                await releasing
            await asyncio.gather(*waiting)


@asynccontextmanager
async def waiting_at_an_open_slot(
    cluster: ClusterSet, client: Any, other: Any, first: str
) -> AsyncIterator[tuple[Any, list["asyncio.Task[None]"]]]:
    """Hold a lock for which two sessions wait, and open its slot, of whose keys the *first* has gone."""

    async def wait(one: Any) -> None:
        async with Lock(one, "orders", ttl=TTL).hold(timeout=20):
            pass

    def open_slot() -> None:
        source = cluster.primary_of(SLOT)
        cluster.begin_move(SLOT, next(server for server in cluster.primaries() if server is not source))
        lines = [key for key in cluster.keys_to_move(SLOT) if b":q:" in key]
        assert len(lines) == 2
        key = key_of("orders")
        keys: dict[str, str | bytes] = {
            "the holder": key, "the fence": f"{key}:fence", "the queue": f"{key}:queue", LINE: lines[0],
        }  # fmt: skip
        assert source.operator.exists(keys[first])
        cluster.migrate([keys[first]])

    lease = await Lock(client, "orders", ttl=SHORT).acquire()
    waiting = [asyncio.create_task(wait(one)) for one in (client, other) for _ in range(2)]
    await queued(Lock(other, "orders"), len(waiting))
    await asyncio.to_thread(open_slot)
    try:
        yield lease, waiting
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_a_node_comes_with_the_slot_of_a_busy_lock_and_goes(cluster: ClusterSet, client: Any, other: Any) -> None:
    old = cluster.primary_of(SLOT)
    async with turns(locks_of(client, other)) as busy:
        new = await asyncio.to_thread(cluster.add_primary)
        await asyncio.to_thread(cluster.move_slot, SLOT, new)
        await busy.go_on()
        await asyncio.to_thread(cluster.move_slot, SLOT, old)
        await asyncio.to_thread(cluster.wait_until_ok)
        await asyncio.to_thread(cluster.remove, new)
    assert busy.most == 1


def locks_of(*clients: Any) -> list[Lock]:
    return [Lock(client, "orders", ttl=TTL, acquire_timeout=20) for client in clients]


@pytest.mark.parametrize("told", [True, False], ids=["the documented rights", "none to channels of shards"])
@pytest.mark.skipif(version_of(find_binary()) < (7,), reason="channels of shards came with Redis 7")
async def test_waiters_with_the_readmes_rights_are_woken_and_without_channel_rights_they_poll(
    cluster: ClusterSet, caplog: pytest.LogCaptureFixture, told: bool
) -> None:
    set_user(cluster, "restricted", *([] if told else ["-ssubscribe"]))
    one: Any
    two: Any
    with caplog.at_level(logging.WARNING, logger="aiolocks"):
        async with (
            cluster.client(username="restricted", password="secret") as one,
            cluster.client(username="restricted", password="secret") as two,
            turns(locks_of(one, two)) as busy,
        ):
            assert polling(one, two)
            assert any(polling(one, two)) is not told
    assert busy.most == 1
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (0 if told else 2), warnings
    assert all("lacks the rights +ssubscribe" in line for line in warnings)


def set_user(cluster: ClusterSet, name: str, *but: str) -> None:
    """Make a user who has the documented rights, but for some."""
    for server in cluster.servers:
        operator: Any = server.operator
        rights = documented_rights(cluster=True)
        operator.execute_command("ACL", "SETUSER", name, "reset", "on", ">secret", *rights, *but)


async def test_a_multilock_of_names_on_all_nodes_outlives_a_node(cluster: ClusterSet, client: Any, other: Any) -> None:
    names = ["orders", *(f"account:{number}" for number in range(8))]
    keys = {name: f"aiolocks:multi:{{{name}}}" for name in names}
    nodes = {await asyncio.to_thread(cluster.node_of, key) for key in keys.values()}
    assert len(nodes) == 3
    async with MultiLock(client, names, ttl=SHORT) as lease:
        waiting = asyncio.create_task(MultiLock(other, names[:5], ttl=TTL).acquire())
        await replaced(cluster, "taken over")
        await asyncio.sleep(SHORT)  # by now it lasts only because the new primary has renewed it
        assert lease.held
        assert not waiting.done()
    later = await asyncio.wait_for(waiting, 2 * TTL)
    assert all(later.fencing_tokens[name] > lease.fencing_tokens[name] for name in names[:5])
    assert await later.release()
