"""A server that refuses to write, for want of memory, replicas or disk, or evicts: errors are clear, nothing stays."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import AcquireTimeoutError, LeaseLostError, Lock, Semaphore
from tests.faults.support.asking import Body, granted_at, outcome_of
from tests.faults.support.kinds import Kind, fresh_acquire, make
from tests.faults.support.residue import wait_until_only_residue
from tests.support.lateness import SLACK, assert_within, kept, measured_lag
from tests.support.primitives import queued
from tests.support.servers import RedisServer, fail_to_save

pytestmark = pytest.mark.parametrize("kind", [Lock, Semaphore])

TTL = 1.5

GRACE = 1.0
"""Seconds that an acquire which failed waits for its undo, which such a server refuses too."""


@asynccontextmanager
async def configured(redis: Redis, setting: str) -> AsyncIterator[None]:
    name, _, value = setting.partition(" ")
    before: Any = await redis.config_get(name)
    await redis.config_set(name, value)
    try:
        yield
    finally:
        await redis.config_set(name, before[name])


async def check_healed(server: RedisServer, redis: Redis, kind: Kind, name: str, lag: float) -> None:
    """C4."""
    took = await fresh_acquire(server.url, kind, name, ttl=TTL)
    assert_within(took, TTL + SLACK * 0.2 + lag)
    await wait_until_only_residue(redis, within=2 * TTL)


async def test_a_full_server_refuses_leases_and_places_and_goes_on_renewing_releasing_and_handing_over(
    own_server: RedisServer, own: Redis, other: Redis, kind: Kind
) -> None:
    """F17, out of memory. A refusal is redis-py's own error: nobody has said that somebody else holds it."""
    async with measured_lag() as lag:
        async with kept(TTL), make(kind, own, "kept", ttl=TTL) as lease:
            waiter = asyncio.create_task(make(kind, other, "kept", ttl=TTL).acquire())
            await queued(make(kind, own, "kept", ttl=TTL), 1)
            await asyncio.sleep(0.1)  # it has subscribed
            await own.config_set("maxmemory", "1")
            async with Redis.from_url(own_server.url) as third:  # whose session has no place in the queue
                for asking in (
                    make(kind, own, "new", ttl=TTL).acquire,
                    make(kind, own, "new", ttl=TTL).try_acquire,
                    lambda: make(kind, other, "new", ttl=TTL).acquire(timeout=1),
                    make(kind, third, "kept", ttl=TTL).acquire,
                ):
                    result, took = await outcome_of(asking)
                    assert isinstance(result, ResponseError), result
                    assert "maxmemory" in str(result)
                    assert not isinstance(result, AcquireTimeoutError)
                    assert_within(took, SLACK * 0.2 + lag.worst)
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
        await own.config_set("maxmemory", "0")
        await check_healed(own_server, own, kind, "kept", lag.worst)
        await check_healed(own_server, own, kind, "new", lag.worst)
    assert_within(took, SLACK * 0.2 + lag.worst, "to hand it over while the server was full")


@pytest.mark.parametrize("policy", ["volatile-ttl", "allkeys-lru"])
async def test_a_lease_that_is_evicted_is_lost_at_the_next_renewal_and_fences_go_on_rising(
    own_server: RedisServer, own: Redis, other: Redis, kind: Kind, policy: str
) -> None:
    """F17, eviction: the renewal does not make it anew (P5), so the next holder is alone from then on."""
    body = Body()
    base = f"aiolocks:{kind.__name__.lower()}:{{evicted}}"
    async with measured_lag() as lag:
        await own.config_set("maxmemory-policy", policy)
        with pytest.raises(LeaseLostError):
            async with make(kind, own, "evicted", ttl=TTL) as lease:
                await asyncio.sleep(TTL / 2)
                assert await other.exists(base)
                async with configured(other, "maxmemory 1"):
                    while await other.exists(base):
                        await outcome_of(lambda: other.set("test:one more", ""))
                evicted_at = time.monotonic()
                await granted_at(make(kind, other, "evicted", ttl=TTL))
                await body.work(TTL)
        async with make(kind, other, "evicted", ttl=TTL) as next_lease:
            assert next_lease.fencing_token > lease.fencing_token
        await check_healed(own_server, own, kind, "evicted", lag.worst)
    assert_within(body.ended_at - evicted_at, 1.1 * TTL / 3 + SLACK * 0.05 + lag.worst)


@pytest.mark.parametrize(("refusal", "setting"), [("NOREPLICAS", "min-replicas-to-write 1"), ("MISCONF", "save 999 1")])
async def test_without_enough_replicas_or_disk_a_caller_gets_the_refusal_and_holders_end_in_time(
    own_server: RedisServer, own: Redis, other: Redis, kind: Kind, refusal: str, setting: str
) -> None:
    """F18: a clear error, and a body that ends before anybody else can have the name once writes are accepted again."""
    body = Body()
    fail_to_save(own_server.operator)
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError):
            async with make(kind, own, "replicated", ttl=TTL) as lease:
                async with configured(other, setting):
                    left = lease.remaining()
                    begun = time.monotonic()
                    askings: tuple[Callable[[], Awaitable[object]], ...] = (
                        lambda: make(kind, other, "replicated", ttl=TTL).acquire(timeout=GRACE / 2),
                        lambda: make(kind, other, "new", ttl=TTL).acquire(timeout=GRACE / 2),
                        make(kind, other, "new", ttl=TTL).try_acquire,
                        lambda: make(kind, own, "new", ttl=TTL).acquire(timeout=0),
                    )
                    for result, took in await asyncio.gather(*map(outcome_of, askings)):
                        assert isinstance(result, ResponseError), result
                        assert refusal in str(result)
                        assert_within(took, GRACE + SLACK * 0.2 + lag.worst)
                    assert lease.held
                    await body.work(3 * TTL)
        taken_at = await granted_at(make(kind, other, "replicated", ttl=TTL))
        await check_healed(own_server, own, kind, "replicated", lag.worst)
        await check_healed(own_server, own, kind, "new", lag.worst)
    print(f"{kind.__name__}: the body ended after {body.ended_at - begun:.3f} s, of {left:.3f} s left")
    assert begun < body.ended_at < begun + left + lag.worst + 0.02
    assert body.ended_at < taken_at


async def test_an_adoption_rides_out_a_shortage_of_replicas(own: Redis, other: Redis, kind: Kind) -> None:
    """F18: the refusal of a script with other arguments than `grant`'s is read as any other."""
    text = await (await make(kind, own, "handed on", ttl=TTL).acquire()).hand_off(ttl=10 * SLACK)
    async with configured(own, "min-replicas-to-write 1"):
        adopting = asyncio.create_task(make(kind, other, "handed on", ttl=TTL).adopt(text))
        await asyncio.sleep(0.3 * TTL)
    adopted = await asyncio.wait_for(adopting, timeout=5 * SLACK)
    assert await adopted.release()
