"""A holder that cannot reach Redis stops before anybody else can have the name, and is not kept when it leaves."""

import asyncio
import time

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseLostError, Lock, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import UNREACHABLE, Body, granted_at, outcome_of, wait_until_listening
from tests.faults.support.kinds import Kind, make
from tests.support.lateness import SLACK, TooLateError, assert_within, measured_lag
from tests.support.primitives import queued, until


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_body_cut_off_from_redis_ends_before_another_caller_can_have_the_name(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: Kind
) -> None:
    """F4: everything is swallowed for three TTLs."""
    ttl = 1.0
    requests: list[float] = []
    body = Body()
    proxy.on_request = lambda request: requests.append(time.monotonic()) if b"cut off" in request else None
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError):
            async with make(kind, client, "cut off", ttl=ttl) as lease:
                contender = asyncio.create_task(granted_at(make(kind, redis, "cut off", ttl=ttl)))
                await asyncio.sleep(1.2 * ttl)  # renewed three times by now
                lease.check()
                proxy.black_hole = True
                last_request = requests[-1]
                await body.work(3 * ttl)
        if not proxy.black_hole:
            assert lag.worst > ttl / 3, "the lease was lost before it was cut off"
            raise TooLateError("the lease was lost before it was cut off")
        taken_at = await contender
        proxy.black_hole = False
        proxy.cut_all()
    print(
        f"{kind.__name__}: the body ended {body.ended_at - last_request:.3f} s after the newest request that was "
        f"answered; granted anew after {taken_at - last_request:.3f} s; loop lag up to {lag.worst:.3f} s"
    )
    assert len(requests) >= 3
    assert body.ended_at - lag.worst < last_request + ttl
    assert body.ended_at < taken_at
    assert_within(taken_at - last_request, ttl + SLACK * 0.2 + lag.worst)


@pytest.mark.parametrize("how", ["asked for", "handed over"])
@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_body_whose_grant_arrived_late_ends_before_another_caller_can_have_the_name(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: Kind, how: str
) -> None:
    """F4: counted from the answer, it would go on while the next one works."""
    ttl, lateness = 2.0, 0.4
    body = Body()
    began_at = 0.0
    mine = make(kind, redis, "late", ttl=ttl, renew=False)

    async def work() -> None:
        nonlocal began_at
        async with make(kind, client, "late", ttl=ttl, renew=False):
            began_at = time.monotonic()
            await body.work(3 * ttl)

    async def granted() -> bool:
        return (await mine.statistics()).holders > 0

    async with Lock(client, "keeps the session"):
        if how == "asked for":
            proxy.delay_replies = lateness
            working = asyncio.create_task(work())
            await until(granted)
            contender = asyncio.create_task(granted_at(mine))
            await queued(mine, 1)
        else:
            first = await mine.acquire()
            working = asyncio.create_task(work())
            await queued(mine, 1)
            contender = asyncio.create_task(granted_at(make(kind, redis, "late", ttl=ttl, renew=False)))
            await queued(mine, 2)
            await wait_until_listening(redis, 2)  # or the first in the queue is passed over
            proxy.delay_replies = lateness
            await first.release()
        with pytest.raises(LeaseLostError):
            await working
        taken_at = await contender
        proxy.delay_replies = 0.0
    assert 0 < began_at < body.ended_at < taken_at


async def test_renewal_and_release_by_hand_raise_when_redis_does_not_confirm(
    redis: Redis, proxy: FaultProxy, client: Redis
) -> None:
    ttl = 3.0
    async with measured_lag() as lag:
        lease = await Lock(client, "by hand", ttl=ttl).acquire()
        permits = await Semaphore(client, "by hand", 3, ttl=ttl).acquire(permits=2)
        proxy.black_hole = True
        begun = time.monotonic()
        renewals = await asyncio.gather(outcome_of(lease.renew), outcome_of(permits.renew))
        held = [lease.held, permits.held]
        releases = await asyncio.gather(outcome_of(lease.release), outcome_of(permits.release))
        ended_after = time.monotonic() - begun
        held += [lease.held, permits.held]
        proxy.black_hole = False
        proxy.cut_all()
        async with Lock(redis, "by hand"), Semaphore(redis, "by hand", 3).hold(permits=2):
            free_after = time.monotonic() - begun
    assert all(isinstance(result, UNREACHABLE) for result, _ in (*renewals, *releases))
    assert held == [True, True, False, False]
    assert ended_after < ttl + SLACK * 0.1 + lag.worst
    assert_within(free_after, ttl + SLACK * 0.2 + lag.worst)
