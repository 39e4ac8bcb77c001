"""A server's wall clock is stepped (L2): a loss is noticed, fencing tokens rise, and each wait ends in time."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, LeaseLostError, Lock, Semaphore
from tests.faults.support.asking import Body, outcome_of
from tests.faults.support.kinds import Kind, make
from tests.faults.support.resource import check_bitten, write
from tests.faults.support.server_clock import ServerClock
from tests.support.lateness import SLACK, assert_within, kept, measured_lag
from tests.support.primitives import queued
from tests.support.servers import RedisServer

kinds = pytest.mark.parametrize("kind", [Lock, Semaphore])

TTL = 1.5
STEP = 60.0


@pytest.fixture
def own_server(clock: ServerClock, servers: Callable[..., RedisServer]) -> RedisServer:
    """The server whose clock can be stepped."""
    return servers(environment=clock.environment)


async def step(clock: ServerClock, redis: Redis, seconds: float) -> None:
    """Step the clock, and return once scripts go by it.

    Valkey 9.1 reads it once in a tick of 0.1 s and not for each script: what is granted in between, by the old clock,
    ends at once by the new one (L2).
    """
    clock.step(seconds)
    async with asyncio.timeout(5):
        while True:
            told: Any = await redis.eval("return redis.call('TIME')", 0)
            if abs(float(told[0]) - time.time() - clock.ahead) < STEP / 2:
                return


@kinds
async def test_a_step_forward_is_a_loss_at_the_next_renewal_and_a_late_write_is_refused(
    clock: ServerClock, own: Redis, other: Redis, kind: Kind
) -> None:
    """F16: for up to a third of a TTL two believe to hold it; only the fencing token tells them apart."""
    body = Body()
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError):
            async with make(kind, own, "stepped", ttl=TTL) as lease:
                await asyncio.sleep(TTL / 2)
                assert await write(other, lease.fencing_token) == 1
                clock.step(STEP)
                stepped_at = time.monotonic()
                next_lease = await make(kind, other, "stepped", ttl=TTL).acquire(timeout=TTL)
                assert await write(other, next_lease.fencing_token) == 1
                assert await write(other, lease.fencing_token) == 0
                await body.work(TTL)
        assert await next_lease.release(), "the new holder's lease is none of the old one's"
        await check_bitten(other)
    assert_within(body.ended_at - stepped_at, 1.1 * TTL / 3 + SLACK * 0.05 + lag.worst)


@kinds
async def test_fencing_tokens_rise_whichever_way_the_clock_steps(clock: ServerClock, own: Redis, kind: Kind) -> None:
    """F16, P8: the last one is remembered, so a clock behind it does no harm."""
    fences: list[int] = []
    for seconds in (0, STEP, -2 * STEP, STEP, -STEP, 2 * STEP):
        await step(clock, own, seconds)
        for _ in range(3):
            async with make(kind, own, "stepped", ttl=TTL) as lease:
                fences.append(lease.fencing_token)
    assert fences == sorted(set(fences))


@kinds
async def test_after_a_step_back_callers_bound_waits(clock: ServerClock, own: Redis, other: Redis, kind: Kind) -> None:
    """F16: the lease of a dead holder lasts a minute longer. A semaphore's does not: no score can be that far ahead."""
    async with measured_lag() as lag:
        orphan = await make(kind, other, "stepped", ttl=TTL, renew=False).acquire()
        clock.step(-STEP)
        mine = make(kind, own, "stepped", ttl=TTL)
        result, took = await outcome_of(lambda: mine.acquire(timeout=TTL / 3))
        assert isinstance(result, AcquireTimeoutError)
        assert_within(took, TTL / 3 + SLACK * 0.1 + lag.worst)
        result, took = await outcome_of(lambda: mine.acquire(timeout=2 * TTL))
        if kind is Semaphore:
            assert not isinstance(result, Exception)
            assert_within(took, TTL + SLACK * 0.2 + lag.worst)
            await mine.release()
        else:
            assert isinstance(result, AcquireTimeoutError)
            assert_within(took, 2 * TTL + SLACK * 0.1 + lag.worst)
        assert (await mine.statistics()).waiting == 0
        assert not orphan.held
        await orphan.release()


@kinds
async def test_a_step_back_lets_no_newcomer_of_one_process_overtake_a_waiter_of_another(
    clock: ServerClock, own_server: RedisServer, own: Redis, other: Redis, kind: Kind
) -> None:
    """F16: nor is a lease shortened. The queue shows the first waiter of each process, and no other is overtaken."""
    order: list[str] = []

    async def take_a_turn(asking: Redis, who: str) -> None:
        async with make(kind, asking, "stepped", ttl=TTL):
            order.append(who)

    asked = ["A1", "B1", "A2", "A3", "B2", "B3", "A4", "B4"]
    async with Redis.from_url(own_server.url) as holder:
        async with kept(TTL), make(kind, holder, "stepped", ttl=TTL) as lease:
            waiters = []
            for number, who in enumerate(asked):
                if who == "B2":
                    clock.step(-STEP)
                    await asyncio.sleep(0.15)  # Valkey 9.1 reads its clock once in 0.1 s
                waiters.append(asyncio.create_task(take_a_turn(own if who[0] == "A" else other, who)))
                await queued(make(kind, holder, "stepped", ttl=TTL), number + 1)
            await asyncio.sleep(1.5 * TTL)
            lease.check()
            assert order == []
        async with asyncio.timeout(TTL * SLACK):
            await asyncio.gather(*waiters)
    assert order == asked


@kinds
async def test_a_lease_between_requests_is_touched_after_a_step_back_and_is_gone_after_one_forward(
    clock: ServerClock, own: Redis, other: Redis, kind: Kind
) -> None:
    """W27: a touch after a step says how the lease is by the new clock. The next holder's fencing token is larger."""
    lease = await make(kind, own, "touched", ttl=STEP / 2).acquire()
    text = await lease.hand_off()
    await step(clock, own, -STEP)
    assert await make(kind, other, "touched", ttl=TTL).touch(text) == lease.fencing_token
    assert not await make(kind, other, "touched", ttl=TTL).try_acquire()
    await step(clock, own, 3 * STEP)
    assert await make(kind, other, "touched", ttl=TTL).touch(text) is None
    assert await make(kind, other, "touched", ttl=TTL).drop(text) is False
    async with make(kind, other, "touched", ttl=TTL) as next_lease:
        assert next_lease.fencing_token > lease.fencing_token
