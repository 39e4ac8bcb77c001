"""A server that is killed and comes back with nothing, or with old data: every holder learns of it."""

import asyncio
import time
from typing import Literal

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseLostError, Lock, Semaphore
from tests.faults.support.asking import Body
from tests.faults.support.kinds import Kind, make
from tests.faults.support.residue import wait_until_only_residue
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.servers import RedisServer

pytestmark = pytest.mark.parametrize("kind", [Lock, Semaphore])

TTL = 1.5
RETRY = 0.1
"""Seconds between a holder's attempts to renew, at most, while they fail."""


@pytest.mark.parametrize("snapshot", [False, True], ids=["empty", "from an old snapshot"])
async def test_a_holder_learns_of_a_restart_without_its_lease_at_its_next_renewal_and_fences_go_on_rising(
    own_server: RedisServer, own: Redis, other: Redis, kind: Kind, snapshot: bool
) -> None:
    """F6: the renewal never makes the lease anew, or two would hold it (P5). L5: one that had ended lasts its TTL."""
    body = Body()
    async with measured_lag() as lag:
        former = await make(kind, other, "killed", ttl=TTL, renew=False).acquire()
        granted_at = time.monotonic()
        if snapshot:
            await own.save()
        assert await former.release()
        with pytest.raises(LeaseLostError, match="its key expired"):
            async with make(kind, own, "killed", ttl=TTL) as lease:
                await asyncio.sleep(TTL / 2)
                own_server.kill()
                own_server.restart()
                restarted_at = time.monotonic()
                assert own_server.operator.exists(f"aiolocks:{kind.__name__.lower()}:{{killed}}") == snapshot
                await body.work(2 * TTL)
        async with make(kind, own, "killed", ttl=TTL) as next_lease:
            took = time.monotonic() - granted_at
        await wait_until_only_residue(own, within=1.0)
    assert_within(body.ended_at - restarted_at, 1.1 * TTL / 3 + SLACK * RETRY + lag.worst)
    assert_within(took, TTL + SLACK * 0.2 + lag.worst)
    assert next_lease.fencing_token > lease.fencing_token > former.fencing_token


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
