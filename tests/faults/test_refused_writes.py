"""A server that refuses to write, for want of memory or replicas, or that evicts: errors are clear, nothing stays."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import AcquireTimeoutError, LeaseLostError, Lock, Semaphore
from tests.faults.support.asking import granted_at, outcome_of
from tests.faults.support.kinds import Kind, fresh_acquire, make
from tests.faults.support.residue import wait_until_only_residue
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.servers import RedisServer

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.redis,
    pytest.mark.faults,
    pytest.mark.parametrize("kind", [Lock, Semaphore]),
]

TTL = 1.5

GRACE = 1.0
"""Seconds that an acquire which failed waits for its undo, which such a server refuses too."""


@asynccontextmanager
async def configured(redis: Redis, setting: str, value: object, otherwise: object) -> AsyncIterator[None]:
    await redis.config_set(setting, str(value))
    try:
        yield
    finally:
        await redis.config_set(setting, str(otherwise))


async def check_healed(server: RedisServer, redis: Redis, kind: Kind, name: str, lag: float) -> None:
    """C4."""
    took = await fresh_acquire(server.url, kind, name, ttl=TTL)
    assert_within(took, TTL + SLACK * 0.2 + lag)
    await wait_until_only_residue(redis, within=2 * TTL)


async def test_a_full_server_refuses_leases_and_places_and_goes_on_renewing_releasing_and_handing_over(
    own_server: RedisServer, kind: Kind
) -> None:
    """F17, out of memory. A refusal is redis-py's own error: nobody has said that somebody else holds it."""
    async with (
        Redis.from_url(own_server.url) as client,
        Redis.from_url(own_server.url) as other,
        measured_lag() as lag,
    ):
        async with make(kind, client, "kept", ttl=TTL) as lease:
            waiter = asyncio.create_task(make(kind, other, "kept", ttl=TTL).acquire())
            while not (await make(kind, client, "kept", ttl=TTL).statistics()).waiting:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # it has subscribed
            await client.config_set("maxmemory", "1")
            for asking in (
                make(kind, client, "new", ttl=TTL).acquire,
                make(kind, client, "new", ttl=TTL).try_acquire,
                lambda: make(kind, other, "new", ttl=TTL).acquire(timeout=1),
            ):
                result, took = await outcome_of(asking)
                assert isinstance(result, ResponseError), result
                assert "maxmemory" in str(result)
                assert not isinstance(result, AcquireTimeoutError)
                assert_within(took, SLACK * 0.2 + lag.worst)
            async with Redis.from_url(own_server.url) as third:  # whose session has no place in the queue
                result, took = await outcome_of(lambda: make(kind, third, "kept", ttl=TTL).acquire())
            print(f"{kind.__name__}: enqueueing gave {result!r} after {took:.3f} s")
            assert isinstance(result, ResponseError), result
            ends_at = time.monotonic() + 2 * TTL
            while time.monotonic() < ends_at:
                await asyncio.sleep(0.02)
                lease.check()
            assert await lease.renew()
            assert not waiter.done()
            left_at = time.monotonic()
        next_lease = await asyncio.wait_for(waiter, timeout=2 * TTL)
        took = time.monotonic() - left_at
        assert next_lease.fencing_token > lease.fencing_token
        assert await next_lease.release()
        await client.config_set("maxmemory", "0")
        await check_healed(own_server, client, kind, "kept", lag.worst)
        await check_healed(own_server, client, kind, "new", lag.worst)
    print(f"{kind.__name__}: handed over within {took:.3f} s while the server was full")
    assert_within(took, SLACK * 0.2 + lag.worst)


@pytest.mark.parametrize("policy", ["volatile-ttl", "allkeys-lru"])
async def test_a_lease_that_is_evicted_is_lost_at_the_next_renewal_and_fences_go_on_rising(
    own_server: RedisServer, kind: Kind, policy: str
) -> None:
    """F17, eviction: the renewal does not make it anew (P5), so the next holder is alone from then on."""
    stopped_at = 0.0
    async with (
        Redis.from_url(own_server.url) as client,
        Redis.from_url(own_server.url) as other,
        measured_lag() as lag,
    ):
        await client.config_set("maxmemory-policy", policy)
        with pytest.raises(LeaseLostError):
            async with make(kind, client, "evicted", ttl=TTL) as lease:
                await asyncio.sleep(TTL / 2)
                base = f"aiolocks:{kind.__name__.lower()}:{{evicted}}"
                assert await other.exists(base)
                async with configured(other, "maxmemory", 1, otherwise=0):
                    while await other.exists(base):
                        await outcome_of(lambda: other.set("test:one more", ""))
                evicted_at = time.monotonic()
                taken_at = await granted_at(make(kind, other, "evicted", ttl=TTL))
                try:
                    await asyncio.sleep(TTL)
                finally:
                    stopped_at = time.monotonic()
        async with make(kind, other, "evicted", ttl=TTL) as next_lease:
            assert next_lease.fencing_token > lease.fencing_token
        await check_healed(own_server, client, kind, "evicted", lag.worst)
    print(
        f"{kind.__name__}, {policy}: granted anew {taken_at - evicted_at:.3f} s after the eviction; "
        f"the evicted holder stopped after {stopped_at - evicted_at:.3f} s, with a ttl of {TTL} s"
    )
    assert_within(stopped_at - evicted_at, 1.1 * TTL / 3 + SLACK * 0.05 + lag.worst)


async def test_without_enough_replicas_a_caller_gets_the_refusal_and_holders_end_in_time(
    own_server: RedisServer, kind: Kind
) -> None:
    """F18: a clear error, and a body that ends before anybody else can have the name once replicas are back."""
    ended_at = 0.0
    async with (
        Redis.from_url(own_server.url) as client,
        Redis.from_url(own_server.url) as other,
        measured_lag() as lag,
    ):
        with pytest.raises(LeaseLostError):
            async with make(kind, client, "replicated", ttl=TTL) as lease:
                left = lease.remaining()
                begun = time.monotonic()
                async with configured(other, "min-replicas-to-write", 1, otherwise=0):
                    askings: tuple[Callable[[], Awaitable[object]], ...] = (
                        lambda: make(kind, other, "replicated", ttl=TTL).acquire(timeout=GRACE / 2),
                        lambda: make(kind, other, "new", ttl=TTL).acquire(timeout=GRACE / 2),
                        make(kind, other, "new", ttl=TTL).try_acquire,
                        lambda: make(kind, client, "new", ttl=TTL).acquire(timeout=0),
                    )
                    for result, took in await asyncio.gather(*map(outcome_of, askings)):
                        print(f"{result!r} after {took:.3f} s")
                        assert isinstance(result, ResponseError)
                        assert "NOREPLICAS" in str(result)
                        assert_within(took, GRACE + SLACK * 0.2 + lag.worst)
                    assert lease.held
                    try:
                        await asyncio.sleep(3 * TTL)
                    finally:
                        ended_at = time.monotonic()
        taken_at = await granted_at(make(kind, other, "replicated", ttl=TTL))
        await check_healed(own_server, client, kind, "replicated", lag.worst)
        await check_healed(own_server, client, kind, "new", lag.worst)
    print(f"{kind.__name__}: the body ended after {ended_at - begun:.3f} s, of {left:.3f} s left")
    assert begun < ended_at < begun + left + lag.worst + 0.02
    assert ended_at < taken_at


async def test_a_shortage_of_replicas_that_ends_in_time_is_ridden_out(own_server: RedisServer, kind: Kind) -> None:
    """F18: holders keep their lease, those in the queue their place."""
    async with (
        Redis.from_url(own_server.url) as client,
        Redis.from_url(own_server.url) as other,
        measured_lag() as lag,
    ):
        async with make(kind, client, "replicated", ttl=TTL) as lease:
            waiter = asyncio.create_task(granted_at(make(kind, other, "replicated", ttl=TTL)))
            while not (await make(kind, client, "replicated", ttl=TTL).statistics()).waiting:
                await asyncio.sleep(0.01)
            async with configured(client, "min-replicas-to-write", 1, otherwise=0):
                await asyncio.sleep(0.4 * TTL)
            await asyncio.sleep(TTL)
            lease.check()
            assert not waiter.done()
            left_at = time.monotonic()
        taken_at = await waiter
        await check_healed(own_server, client, kind, "replicated", lag.worst)
    assert_within(taken_at - left_at, SLACK * 0.2 + lag.worst)
