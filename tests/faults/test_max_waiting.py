"""A bound on the queue when replies are lost: no waiter is refused that is in line, and no refusal leaves one there."""

import asyncio

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, MultiLock, QueueFullError, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import Loss, either_loss
from tests.faults.support.kinds import Kind, make
from tests.faults.support.residue import wait_until_only_residue
from tests.support.primitives import queued

kinds = pytest.mark.parametrize("kind", [Lock, Semaphore])


async def take(kind: Kind, client: Redis, max_waiting: int) -> None:
    async with make(kind, client, "room", ttl=20).hold(max_waiting=max_waiting):
        pass


@either_loss
@kinds
async def test_a_waiter_whose_first_reply_is_lost_stays_in_line(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, kind: Kind
) -> None:
    async with make(kind, redis, "room", ttl=20):
        proxy.drop_next_reply(b"{room}:queue", how)
        waiting = asyncio.create_task(take(kind, client, 1))
        await queued(make(kind, redis, "room", ttl=20), 1)
        with pytest.raises(QueueFullError):
            await asyncio.create_task(take(kind, redis, 1))
        await asyncio.sleep(1.5)  # it has asked again
        assert not waiting.done()
    await waiting
    await wait_until_only_residue(redis, within=1.0)


@either_loss
@kinds
async def test_a_refusal_whose_reply_is_lost_is_one_and_leaves_nothing(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, kind: Kind
) -> None:
    async with make(kind, redis, "room", ttl=20):
        waiting = asyncio.create_task(take(kind, redis, 1))
        await queued(make(kind, redis, "room", ttl=20), 1)
        proxy.drop_next_reply(b"{room}:queue", how)
        with pytest.raises(QueueFullError):
            await take(kind, client, 1)
        await queued(make(kind, redis, "room", ttl=20), 1)
    await waiting
    await wait_until_only_residue(redis, within=1.0)


@either_loss
@kinds
async def test_a_caller_that_is_cancelled_before_its_reply_leaves_nothing(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, kind: Kind
) -> None:
    """Whether it found room or not."""
    async with make(kind, redis, "room", ttl=20):
        for most in (1, 0):
            proxy.drop_next_reply(b"{room}:queue", how)
            asking = asyncio.create_task(take(kind, client, most))
            await asyncio.sleep(0.1)
            asking.cancel()
            await asyncio.wait([asking])
        await queued(make(kind, redis, "room", ttl=20), 0)
    await wait_until_only_residue(redis, within=1.0)


async def test_a_name_granted_after_it_was_refused_is_kept(redis: Redis, client: Redis, proxy: FaultProxy) -> None:
    """P7: its queue began with dead sessions, more than one script looks at (W21), so the first answer was "full"."""
    lock = MultiLock(client, ["a", "b"], ttl=20, max_waiting=0)
    async with lock:
        pass
    taken = await MultiLock(redis, ["a"], ttl=20, renew=False).acquire()
    await redis.zadd("aiolocks:multi:{a}:queue", {f"dead{number}": number + 1 for number in range(60)})
    proxy.delay_requests = 0.3
    await redis.pexpire("aiolocks:multi:{a}", 450)  # after the first request has found it held
    lease = await lock.acquire(timeout=10)
    proxy.delay_requests = 0.0
    assert await lease.release()
    assert not await taken.release()
    async with MultiLock(redis, ["a", "b"]).hold(timeout=0):
        pass
    await wait_until_only_residue(redis, within=1.0)
