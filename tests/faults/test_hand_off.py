"""Handing a lease on while answers are lost: it has one owner, or none once it is given up (W17)."""

import asyncio
import contextlib
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import LeaseLostError, Lock
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import UNREACHABLE
from tests.faults.support.residue import wait_until_only_residue
from tests.support.lateness import SLACK, in_time
from tests.support.primitives import rows_where

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]

SOON = 4.0
"""Seconds after which an undo has had its second try, over a connection that works."""

NAME, LOST = "handed", b"handed"

KINDS = rows_where(lambda kind: kind.handed_on)

of_each_kind = pytest.mark.parametrize("kind", KINDS)

either_way = pytest.mark.parametrize("how", ["reset", "black_hole"])


@either_way
@of_each_kind
async def test_a_lost_answer_is_asked_for_again(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: str, how: Any
) -> None:
    lock = KINDS[kind].make(client, NAME, ttl=20)
    lease = await lock.acquire()
    proxy.drop_next_reply(LOST, how)
    text = await lease.hand_off()
    proxy.drop_next_reply(LOST, how)
    adopted = await lock.adopt(text)
    assert adopted.fencing_token > lease.fencing_token
    assert adopted.held
    with pytest.raises(LeaseLostError):
        await KINDS[kind].make(redis, NAME).adopt(text)
    assert await adopted.renew()
    assert await adopted.release()
    await wait_until_only_residue(redis, within=SOON)


@of_each_kind
async def test_a_request_that_is_lost_is_sent_again(redis: Redis, proxy: FaultProxy, client: Redis, kind: str) -> None:
    lock = KINDS[kind].make(client, NAME, ttl=20)
    lease = await lock.acquire()
    proxy.drop_next_request(LOST)
    text = await lease.hand_off()
    proxy.drop_next_request(LOST)
    assert await (await lock.adopt(text)).release()
    await wait_until_only_residue(redis, within=SOON)


@pytest.mark.parametrize("what", ["hand_off", "adopt"])
@pytest.mark.parametrize("lost", ["request", "reply"])
@of_each_kind
async def test_what_is_cancelled_while_its_answer_is_lost_is_free_soon(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: str, what: str, lost: str
) -> None:
    """Whether Redis has got it or not; a text that was not adopted may be adopted still, until its TTL."""
    lock = KINDS[kind].make(client, NAME, ttl=20)
    lease = await lock.acquire()
    text = await lease.hand_off() if what == "adopt" else ""
    (proxy.drop_next_request if lost == "request" else proxy.drop_next_reply)(LOST, "black_hole")
    asking = asyncio.ensure_future(lock.adopt(text) if what == "adopt" else lease.hand_off())
    await asyncio.sleep(0.1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    if what == "adopt" and lost == "request":
        # Of several names some are released, as it is not known whether the first of them was adopted.
        with contextlib.suppress(*([LeaseLostError] if KINDS[kind].kind.several else [])):
            adopted = await KINDS[kind].make(redis, NAME, ttl=20).adopt(text)
            assert await adopted.release()
    await wait_until_only_residue(redis, within=SOON)


async def test_a_hand_off_that_is_not_confirmed_raises_and_is_free_at_the_ttl(
    redis: Redis, proxy: FaultProxy, client: Redis
) -> None:
    lease = await Lock(client, NAME, ttl=1).acquire()
    proxy.black_hole = True
    async with in_time(1 + 1 + SLACK * 0.2):  # while the lease lasts, and a second for its release
        with pytest.raises(UNREACHABLE):
            await lease.hand_off()
    assert not lease.held
    async with Lock(redis, NAME).hold(timeout=5):
        pass
    proxy.black_hole = False
    await wait_until_only_residue(redis, within=SOON)
