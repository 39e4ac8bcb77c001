"""F13: a primary is parted from its replicas and all Sentinels, and goes on beside the one they put in its place."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel

from aiolocks import Lease, LeaseLostError, Lock
from aiolocks.testing import FaultProxy
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.sentinels import SERVICE, SentinelSet

TTL = 3.0

INSIDE = "inside"
"""The user as whom the holder comes: replicas, Sentinels and all others come as the default user."""

LONG = 1.3 * TTL
"""Seconds for which both hold, while the test looks: nothing but renewals keeps a lease for longer than its TTL."""


@pytest.fixture
def split_set() -> Iterator[SentinelSet]:
    with SentinelSet() as running:
        for server in running.servers:
            server.operator.acl_setuser(
                INSIDE, enabled=True, nopass=True, commands=["+@all"], keys=["*"], channels=["*"]
            )
        yield running


class Split:
    """Parts the primary and the holder from all else."""

    def __init__(self, servers: SentinelSet, ways: list[FaultProxy]) -> None:
        self._servers = servers
        self._ways = ways
        self._old = servers.primary()

    async def begin(self) -> None:
        """Part them; return when the Sentinels name another primary."""
        for way in self._ways:
            way.black_hole = True
        operator: Any = self._old.operator
        operator.acl_setuser("default", enabled=False)  # new connections; its own is let in already
        for kind in ("normal", "replica", "pubsub"):
            operator.execute_command("CLIENT", "KILL", "TYPE", kind, "USER", "default", "SKIPME", "yes")
        await asyncio.to_thread(self._servers.wait_for_primary, other_than=self._old)

    async def end(self) -> None:
        self._old.operator.acl_setuser("default", enabled=True, nopass=True)
        for way in self._ways:
            way.black_hole = False
        await asyncio.to_thread(self._servers.wait_until_whole)


@asynccontextmanager
async def beside_the_holder(servers: SentinelSet) -> AsyncIterator[tuple[Redis, Split]]:
    """Give the holder's client, and what parts its side from the other."""
    async with AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(FaultProxy(port=port)) for _, port in servers.sentinel_addresses]
        make: Any = Sentinel  # it has no annotations
        manager = make([("127.0.0.1", way.port) for way in ways])
        for one in manager.sentinels:
            stack.push_async_callback(one.aclose)
        client: Redis = await stack.enter_async_context(manager.master_for(SERVICE, username=INSIDE, password=INSIDE))
        yield client, await asyncio.to_thread(Split, servers, ways)


async def holding(client: Redis) -> tuple["asyncio.Task[float]", Lease]:
    """Hold the lock until it is lost; the task returns when the body has ended."""
    lease = await Lock(client, "orders", ttl=TTL).acquire()

    async def body() -> float:
        with pytest.raises(LeaseLostError):
            async with lease:
                await asyncio.sleep(60)
        return time.monotonic()

    return asyncio.create_task(body()), lease


async def test_where_a_primary_needs_replicas_its_holder_is_stopped_before_the_next(split_set: SentinelSet) -> None:
    for server in split_set.servers:
        server.operator.config_set("min-replicas-max-lag", 1)
        server.operator.config_set("min-replicas-to-write", 1)
    async with (
        beside_the_holder(split_set) as (inside, split), split_set.client() as outside, measured_lag() as lag,
    ):  # fmt: skip
        holder, lease = await holding(inside)
        parted = time.monotonic()
        await split.begin()
        async with Lock(outside, "orders", ttl=TTL).hold(timeout=SLACK * 10) as later:
            entered = time.monotonic()
            assert holder.done()
            assert await holder < entered
            assert later.fencing_token > lease.fencing_token
            # Redis looks once a second how far its replicas lag, and a renewal may come just before.
            assert_within(await holder - parted, 1 + 1 + TTL + SLACK * 0.2 + lag.worst)


async def test_where_it_need_not_two_hold_until_the_split_ends_and_the_first_is_stopped(split_set: SentinelSet) -> None:
    """L3, as README and `doctor` say it: without end."""
    async with beside_the_holder(split_set) as (inside, split), split_set.client() as outside:
        holder, lease = await holding(inside)
        await split.begin()
        async with Lock(outside, "orders", ttl=TTL).hold(timeout=SLACK * 10) as later:
            await asyncio.sleep(LONG)
            assert (lease.held, later.held) == (True, True)
            assert await lease.renew()
            assert later.fencing_token > lease.fencing_token  # which is how a store that looks at it tells them apart
            await split.end()
            await asyncio.wait_for(holder, SLACK * TTL)
            assert later.held
