"""A server that is killed and comes back: with nothing, and everyone learns of it; or with all that it had (AOF)."""

import asyncio
import time
from collections.abc import Callable
from typing import Literal

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseLostError, Lock, Semaphore
from tests.faults.support.asking import Body, granted_at
from tests.faults.support.kinds import Kind, fresh_acquire, make
from tests.faults.support.residue import wait_until_only_residue
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.primitives import queued
from tests.support.servers import RedisServer

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.redis,
    pytest.mark.faults,
    pytest.mark.parametrize("kind", [Lock, Semaphore]),
]

TTL = 1.5
RETRY = 0.1
"""Seconds between a holder's attempts to renew, at most, while they fail."""

DURABLE = {"appendonly": "yes", "appendfsync": "always"}


async def test_a_holder_learns_of_an_empty_restart_at_its_next_renewal_and_fences_go_on_rising(
    own_server: RedisServer, own: Redis, kind: Kind
) -> None:
    """F6: the renewal never makes the lease anew, or two would hold it (P5)."""
    body = Body()
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError, match="its key expired"):
            async with make(kind, own, "killed", ttl=TTL) as lease:
                await asyncio.sleep(TTL / 2)
                own_server.kill()
                own_server.restart()
                restarted_at = time.monotonic()
                await body.work(2 * TTL)
        async with make(kind, own, "killed", ttl=TTL) as next_lease:
            pass
        await wait_until_only_residue(own, within=1.0)
    assert_within(body.ended_at - restarted_at, 1.1 * TTL / 3 + SLACK * RETRY + lag.worst)
    assert next_lease.fencing_token > lease.fencing_token


@pytest.mark.parametrize("watchdog", ["task", "thread"])
async def test_a_holder_of_a_long_lease_learns_of_an_empty_restart_as_soon_as_it_is_connected_again(
    own_server: RedisServer, own: Redis, kind: Kind, watchdog: Literal["task", "thread"]
) -> None:
    """Not at a third of its TTL: another may be granted the lock at once, and over a new link all are renewed."""
    ttl, longest_pause = 10.0, 0.5
    body = Body()
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError, match="its key expired"):
            async with make(kind, own, "killed", ttl=ttl, watchdog=watchdog):
                own_server.kill()
                await asyncio.sleep(0.5)
                own_server.restart()
                restarted_at = time.monotonic()
                await body.work(2 * ttl)
    assert_within(body.ended_at - restarted_at, longest_pause + SLACK * 0.2 + lag.worst)


async def test_a_lease_and_its_queue_survive_a_restart_of_a_server_that_writes_everything_down(
    servers: Callable[..., RedisServer], kind: Kind
) -> None:
    """F6 with AOF `always`: the holder goes on with its lease, the waiter with its place."""
    server = servers(options=DURABLE)
    async with Redis.from_url(server.url) as client, Redis.from_url(server.url) as other, measured_lag() as lag:
        async with make(kind, client, "written", ttl=TTL) as lease:
            contender = asyncio.create_task(granted_at(make(kind, other, "written", ttl=TTL)))
            await queued(make(kind, client, "written", ttl=TTL), 1)
            server.kill()
            server.restart()
            ends_at = time.monotonic() + 2 * TTL
            while time.monotonic() < ends_at:
                await asyncio.sleep(0.02)
                lease.check()
            assert not contender.done()
            now = await make(kind, client, "written", ttl=TTL).statistics()
            assert (now.holders, now.waiting, now.fencing_token) == (1, 1, lease.fencing_token)
            left_at = time.monotonic()
        taken_at = await contender
        async with make(kind, client, "written", ttl=TTL) as next_lease:
            assert next_lease.fencing_token > lease.fencing_token
        await wait_until_only_residue(client, within=1.0)
    assert_within(taken_at - left_at, SLACK * 0.2 + lag.worst)


async def test_a_fresh_client_has_the_name_of_a_holder_that_died_with_the_server_within_the_ttl(
    servers: Callable[..., RedisServer], kind: Kind
) -> None:
    """C4: what the server remembers of those who are gone ends by itself."""
    server = servers(options=DURABLE)
    async with Redis.from_url(server.url) as client, measured_lag() as lag:
        lease = await make(kind, client, "orphaned", ttl=TTL, renew=False).acquire()
        server.kill()
        server.restart()
        took = await fresh_acquire(server.url, kind, "orphaned", ttl=TTL)
        assert not await lease.release()
    assert_within(took, TTL + SLACK * 0.2 + lag.worst)
