"""A guard whose answer is lost is carried out once, and its caller is told what the first attempt answered."""

import asyncio
from collections.abc import Callable
from typing import Literal, get_args

import pytest
from redis.asyncio import Redis

from aiolocks import HierarchicalLock, Lease, LeaseLostError, Lock, MultiLock
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import UNREACHABLE
from tests.support.primitives import Acquirable, rows_where

Loss = Literal["reset", "black_hole"]

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults, pytest.mark.leaves_residue]
pytestmark += [pytest.mark.parametrize("how", get_args(Loss))]


KINDS = rows_where(lambda kind: kind.guards)


@pytest.mark.parametrize("kind", KINDS)
async def test_commands_whose_answers_are_lost_are_carried_out_once(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, kind: str
) -> None:
    async with KINDS[kind].make(client, "once") as lease:
        await lease.guard(("INCRBY", "n", 10))
        proxy.drop_next_reply(b":g:", how)
        assert await lease.guard(("INCR", "n"), ("RPUSH", "l", "once"), ("GET", "none")) == [11, 1, None]
        assert await lease.guard(("INCR", "n")) == [12]
    assert await redis.get("n") == b"12"
    assert await redis.lrange("l", 0, -1) == [b"once"]


async def test_a_client_that_does_not_retry_is_spared_the_doubt_too(redis: Redis, proxy: FaultProxy, how: Loss) -> None:
    async with Redis.from_url(proxy.url) as client, Lock(client, "once") as lease:
        proxy.drop_next_reply(b":g:", how)
        assert await lease.guard(("INCR", "n")) == [1]
    assert await redis.get("n") == b"1"


async def test_guards_at_once_are_each_carried_out_once(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    async with Lock(client, "once") as lease:
        proxy.drop_next_reply(b":g:", how)
        answers = await asyncio.gather(*(lease.guard(("INCR", "n")) for _ in range(10)))
    assert answers == [[count] for count in range(1, 11)]
    assert await redis.get("n") == b"10"


@pytest.mark.parametrize(
    ("make", "gone"),
    [
        (lambda client: Lock(client, "once", renew=False), "aiolocks:lock:{once}"),
        (lambda client: MultiLock(client, ["a", "b"], renew=False), "aiolocks:multi:{b}"),
        (lambda client: HierarchicalLock(client, "a/b", renew=False).write, "aiolocks:hierarchy:{a}/b"),
    ],
    ids=["lock", "multilock", "row of a table"],
)
async def test_commands_that_were_run_are_confirmed_though_the_lease_is_taken_before_the_second_try(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, make: Callable[[Redis], Acquirable], gone: str
) -> None:
    """To say "lost, nothing was written" would be wrong."""
    lease: Lease = await make(client).acquire()
    proxy.drop_next_reply(b":g:", how)
    guarding = asyncio.create_task(lease.guard(("INCR", "n")))
    while await redis.get("n") is None:
        await asyncio.sleep(0)
    await redis.delete(gone)
    assert await guarding == [1]
    with pytest.raises(LeaseLostError):
        await lease.guard(("INCR", "n"))
    assert await redis.get("n") == b"1"


async def test_what_cannot_be_confirmed_while_the_lease_lasts_is_redis_pys_own_exception(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    lease = await Lock(client, "once", ttl=1.5, renew=False).acquire()
    proxy.drop_next_reply(b":g:", how)
    guarding = asyncio.create_task(lease.guard(("INCR", "n")))
    while not guarding.done() and await redis.get("n") is None:
        await asyncio.sleep(0)
    proxy.black_hole = True
    with pytest.raises(UNREACHABLE):
        await guarding
    assert await redis.get("n") == b"1"
