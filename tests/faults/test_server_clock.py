"""A server whose wall clock is stepped: a minute forward ends every lease, a minute back keeps those of the dead.

Neither can be ruled out by a lock on Redis (L2). What holds: a holder learns of its loss at its next renewal, a
resource that checks fencing tokens takes nothing old, and nobody waits longer than they said.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, LeaseLostError, Lock, Semaphore
from tests.faults.support.asking import outcome_of
from tests.faults.support.kinds import Kind, make
from tests.faults.support.resource import ACCEPTED, UNCHECKED, write
from tests.faults.support.server_clock import NoShim, ServerClock
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]
kinds = pytest.mark.parametrize("kind", [Lock, Semaphore])

TTL = 1.5
STEP = 60.0


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[ServerClock]:
    """The wall clock of `stepped`."""
    try:
        built = ServerClock(tmp_path)
    except NoShim as missing:
        pytest.skip(str(missing))
    with closing(built):
        yield built


@pytest.fixture
def stepped(clock: ServerClock, servers: Callable[..., RedisServer]) -> RedisServer:
    """The server whose clock can be stepped."""
    return servers(environment=clock.environment)


async def server_time(redis: Redis) -> float:
    reply: Any = await redis.time()
    return float(reply[0]) + float(reply[1]) / 1e6


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


async def test_the_shim_moves_the_servers_wall_clock_and_nothing_else(clock: ServerClock, stepped: RedisServer) -> None:
    async with Redis.from_url(stepped.url) as redis:
        await redis.set("soon", "", px=30_000)
        assert abs(await server_time(redis) - time.time()) < 1
        clock.step(STEP)
        assert abs(await server_time(redis) - time.time() - STEP) < 1
        assert await redis.get("soon") is None
        clock.step(-2 * STEP)
        assert abs(await server_time(redis) - time.time() + STEP) < 1
        begun = time.monotonic()
        assert await redis.blpop(["nothing"], timeout=1) is None
        took = time.monotonic() - begun
        assert took > 0.9
        assert_within(took, 1.1 + SLACK * 0.2)


@kinds
async def test_a_step_forward_is_a_loss_at_the_next_renewal_and_a_late_write_is_refused(
    clock: ServerClock, stepped: RedisServer, kind: Kind
) -> None:
    """F16: for up to a third of a TTL two believe to hold it; only the fencing token tells them apart."""
    stopped_at = 0.0
    async with (
        Redis.from_url(stepped.url) as client,
        Redis.from_url(stepped.url) as other,
        measured_lag() as lag,
    ):
        with pytest.raises(LeaseLostError):
            async with make(kind, client, "stepped", ttl=TTL) as lease:
                await asyncio.sleep(TTL / 2)
                assert await write(other, lease.fencing_token) == 1
                clock.step(STEP)
                stepped_at = time.monotonic()
                next_lease = await make(kind, other, "stepped", ttl=TTL).acquire(timeout=TTL)
                taken_at = time.monotonic()
                assert await write(other, next_lease.fencing_token) == 1
                bit = lease.held
                assert await write(other, lease.fencing_token) == 0
                try:
                    await asyncio.sleep(TTL)
                finally:
                    stopped_at = time.monotonic()
        assert await next_lease.release(), "the new holder's lease is none of the old one's"
        unchecked = [int(token) for token in await other.lrange(UNCHECKED, 0, -1)]
        accepted = [int(token) for token in await other.lrange(ACCEPTED, 0, -1)]
    print(
        f"{kind.__name__}: granted anew {taken_at - stepped_at:.3f} s after the step, while the old holder believed to "
        f"hold: {bit}; that one stopped {stopped_at - stepped_at:.3f} s after the step, with a ttl of {TTL} s"
    )
    assert unchecked != sorted(unchecked), "the fault did bite"
    assert accepted == sorted(accepted)
    assert_within(stopped_at - stepped_at, 1.1 * TTL / 3 + SLACK * 0.05 + lag.worst)


@kinds
async def test_fencing_tokens_rise_whichever_way_the_clock_is_stepped(
    clock: ServerClock, stepped: RedisServer, kind: Kind
) -> None:
    """F16, P8: the last one is remembered, so a clock behind it does no harm."""
    fences: list[int] = []
    async with Redis.from_url(stepped.url) as client:
        for seconds in (0, STEP, -2 * STEP, STEP, -STEP, 2 * STEP):
            await step(clock, client, seconds)
            for _ in range(3):
                async with make(kind, client, "stepped", ttl=TTL) as lease:
                    fences.append(lease.fencing_token)
    assert fences == sorted(set(fences))


@kinds
async def test_after_a_step_back_a_wait_is_bounded_by_the_caller(
    clock: ServerClock, stepped: RedisServer, kind: Kind
) -> None:
    """F16: the lease of a dead holder lasts a minute longer. A semaphore's does not: no score can be that far ahead."""
    async with Redis.from_url(stepped.url) as client, Redis.from_url(stepped.url) as dead, measured_lag() as lag:
        orphan = await make(kind, dead, "stepped", ttl=TTL, renew=False).acquire()
        clock.step(-STEP)
        mine = make(kind, client, "stepped", ttl=TTL)
        result, took = await outcome_of(lambda: mine.acquire(timeout=TTL / 3))
        assert isinstance(result, AcquireTimeoutError)
        assert_within(took, TTL / 3 + SLACK * 0.1 + lag.worst)
        result, took = await outcome_of(lambda: mine.acquire(timeout=2 * TTL))
        print(f"{kind.__name__}: {result!r} after {took:.3f} s more")
        if kind is Semaphore:
            assert not isinstance(result, Exception)
            assert_within(took, TTL + SLACK * 0.2 + lag.worst)
            await mine.release()
        else:
            assert isinstance(result, AcquireTimeoutError)
            assert_within(took, 2 * TTL + SLACK * 0.1 + lag.worst)
        now = await mine.statistics()
        assert now.waiting == 0
        assert not orphan.held
        await orphan.release()


@kinds
async def test_a_step_back_disturbs_neither_a_holder_nor_the_queue(
    clock: ServerClock, stepped: RedisServer, kind: Kind
) -> None:
    """F16: tickets are not taken from the clock alone, and no lease is shortened."""
    order: list[int] = []

    async def take_a_turn(number: int) -> None:
        async with make(kind, other, "stepped", ttl=TTL):
            order.append(number)

    async with Redis.from_url(stepped.url) as client, Redis.from_url(stepped.url) as other:
        async with make(kind, client, "stepped", ttl=TTL) as lease:
            waiters = []
            for number in range(6):
                if number == 3:
                    clock.step(-STEP)
                waiters.append(asyncio.create_task(take_a_turn(number)))
                while (await make(kind, client, "stepped", ttl=TTL).statistics()).waiting <= number:
                    await asyncio.sleep(0.005)
            await asyncio.sleep(1.5 * TTL)
            lease.check()
            assert order == []
        async with asyncio.timeout(TTL):
            await asyncio.gather(*waiters)
    assert order == list(range(6))


@kinds
async def test_a_step_back_lets_no_newcomer_of_one_process_overtake_a_waiter_of_another(
    clock: ServerClock, stepped: RedisServer, kind: Kind
) -> None:
    """F16: the queue shows the first waiter of each process, and its others are not overtaken either."""
    order: list[str] = []

    async def take_a_turn(client: Redis, who: str) -> None:
        async with make(kind, client, "stepped", ttl=TTL):
            order.append(who)

    asked = ["A1", "B1", "A2", "A3", "B2", "B3", "A4", "B4"]
    async with Redis.from_url(stepped.url) as a, Redis.from_url(stepped.url) as b, Redis.from_url(stepped.url) as c:
        async with make(kind, c, "stepped", ttl=TTL):
            waiters = []
            for number, who in enumerate(asked):
                if who == "B2":
                    clock.step(-5.0)
                    await asyncio.sleep(0.15)  # Valkey 9.1 reads its clock once in 0.1 s
                waiters.append(asyncio.create_task(take_a_turn(a if who[0] == "A" else b, who)))
                while (await make(kind, c, "stepped", ttl=TTL).statistics()).waiting <= number:
                    await asyncio.sleep(0.005)
        async with asyncio.timeout(TTL * SLACK):
            await asyncio.gather(*waiters)
    assert order == asked
