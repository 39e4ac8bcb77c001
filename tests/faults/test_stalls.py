"""A server that stands still or lets no client write: for two TTLs no two are inside, for less than one all is kept."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import LeaseLostError, Lock, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import Body, granted_at
from tests.faults.support.kinds import Kind, fresh_acquire, make
from tests.faults.support.residue import wait_until_only_residue
from tests.support.lateness import SLACK, TooLateError, assert_within, measured_lag
from tests.support.network import until
from tests.support.primitives import queued
from tests.support.servers import RedisServer

TTL = 0.9
STALL = 2 * TTL


async def stop_the_process(server: RedisServer) -> None:
    """SIGSTOP; connections stay open."""
    server.pause()
    await asyncio.sleep(STALL)
    server.resume()


async def debug_sleep(server: RedisServer) -> None:
    """As a slow command: the server's one thread is busy."""
    async with Redis.from_url(server.url) as operator:
        run: Any = operator.execute_command
        await run("DEBUG", "SLEEP", str(STALL))


async def pause_writes(server: RedisServer) -> None:
    """As for a failover by hand: what only reads is answered, and keys that lapse meanwhile stay."""
    async with Redis.from_url(server.url) as operator:
        await operator.client_pause(round(1000 * STALL), all=False)
        await asyncio.sleep(STALL)


Stall = Callable[[RedisServer], Awaitable[None]]


def times_of_requests(proxy: FaultProxy, what: bytes) -> list[float]:
    """Return a list to which the moment of each request with *what* in it is added."""
    times: list[float] = []
    proxy.on_request = lambda request: times.append(time.monotonic()) if what in request else None
    return times


@pytest_asyncio.fixture
async def proxy(own_server: RedisServer) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(path=own_server.socket_path) as running:
        yield running


@pytest_asyncio.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Redis]:
    async with Redis.from_url(proxy.url) as made:
        yield made


@pytest.mark.parametrize("stall", [stop_the_process, debug_sleep, pause_writes])
@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_body_ends_before_its_ttl_when_the_server_stalls_and_the_next_one_begins_afterwards(
    own_server: RedisServer, proxy: FaultProxy, client: Redis, other: Redis, kind: Kind, stall: Stall
) -> None:
    """F5, F10: late answers to renewals revive nothing, and what was asked meanwhile is answered afterwards."""
    requests = times_of_requests(proxy, b"{stalled}")
    body, stalling = Body(), None
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError):
            async with make(kind, client, "stalled", ttl=TTL) as lease:
                contender = asyncio.create_task(granted_at(make(kind, other, "stalled", ttl=5 * TTL)))  # rides it out
                await asyncio.sleep(1.2 * TTL)  # renewed three times by now
                assert lease.held
                renewed = len(requests)
                await until(lambda: len(requests) > renewed)  # so that none slips in before the stall has begun
                stalling = asyncio.ensure_future(stall(own_server))
                await body.work(3 * TTL)
        if stalling is None:
            raise TooLateError("the lease was lost before the server stalled")
        await stalling
        healed_at = time.monotonic()
        last_request = max(at for at in requests if at < healed_at - STALL)  # one more can come before a late stall
        taken_at = await contender
        took = await fresh_acquire(own_server.url, kind, "stalled", ttl=TTL)
        await wait_until_only_residue(other, within=2 * TTL)

    assert body.ended_at - lag.worst < last_request + TTL
    assert body.ended_at < taken_at
    assert_within(took, SLACK * (TTL + 1) + lag.worst)
    assert_within(taken_at - healed_at, SLACK * (TTL + 1) + lag.worst)


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_body_ends_before_its_ttl_when_answers_to_its_renewals_are_late(
    other: Redis, proxy: FaultProxy, client: Redis, kind: Kind
) -> None:
    """F10: a renewal counts from when it left. What the server did at once and told late extends by that much less."""
    ttl = 2.0
    requests = times_of_requests(proxy, b"{late}")
    body, renewed_at = Body(), 0.0
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError):
            async with make(kind, client, "late", ttl=ttl) as lease:
                contender = asyncio.create_task(granted_at(make(kind, other, "late", ttl=5 * ttl)))
                proxy.delay_replies = 0.5
                asked = len(requests)
                await until(lambda: len(requests) > asked)
                left = lease.remaining()
                await until(lambda: lease.remaining() > left)  # the answer is there
                proxy.black_hole = True
                renewed_at = max(at for at in requests if at + 0.5 < time.monotonic())  # no later one is answered
                await body.work(3 * ttl)
        proxy.black_hole = False
        proxy.cut_all()
        taken_at = await contender
    if not renewed_at and lag.worst > 0.1:
        raise TooLateError("the lease was lost before an answer was late")
    assert body.ended_at - lag.worst < renewed_at + ttl
    assert body.ended_at < taken_at


KEPT = 3.0
"""TTL of what outlasts the trouble. Renewed 1.1 s before it at worst, it has 0.2 s left before its deadline."""


async def stand_still(server: RedisServer) -> None:
    server.pause()
    await asyncio.sleep(KEPT / 2)
    server.resume()


async def want_replicas(server: RedisServer) -> None:
    server.operator.config_set("min-replicas-to-write", 1)
    await asyncio.sleep(0.4 * KEPT)
    server.operator.config_set("min-replicas-to-write", 0)


async def restart_with_all(server: RedisServer) -> None:
    server.kill()
    server.restart()


@pytest.mark.parametrize("trouble", [stand_still, want_replicas, restart_with_all])
@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_trouble_that_is_over_within_a_ttl_costs_no_holder_its_lease_and_no_waiter_its_place(
    servers: Callable[..., RedisServer], kind: Kind, trouble: Stall
) -> None:
    """F5, F18, and F6 of a server that writes everything down."""
    server = servers(options={"appendonly": "yes", "appendfsync": "always"})
    async with Redis.from_url(server.url) as client, Redis.from_url(server.url) as other, measured_lag() as lag:
        mine = make(kind, client, "kept", ttl=KEPT)
        async with mine as lease:
            waiter = asyncio.create_task(make(kind, other, "kept", ttl=KEPT).acquire())
            await queued(mine, 1)
            await trouble(server)
            ends_at = time.monotonic() + 1.5 * KEPT
            while time.monotonic() < ends_at:
                await asyncio.sleep(0.02)
                lease.check()
            now = await mine.statistics()
            assert (now.holders, now.waiting, now.fencing_token) == (1, 1, lease.fencing_token)
            left_at = time.monotonic()
        following = await asyncio.wait_for(waiter, timeout=15)
        took = time.monotonic() - left_at
        assert following.fencing_token > lease.fencing_token
        assert await following.release()
        await wait_until_only_residue(client, within=1.0)
    assert_within(took, SLACK * 0.2 + lag.worst)
