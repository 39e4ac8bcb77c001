"""Handing a lease on, or keeping it between requests, while answers are lost and servers restart (W17, W27)."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from redis.asyncio import Redis

from aiolocks import HierarchicalLock, LeaseLostError, Lock
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import UNREACHABLE, Loss, either_loss
from tests.faults.support.residue import wait_until_only_residue
from tests.support.inside import block_loop
from tests.support.lateness import SLACK, in_time
from tests.support.primitives import Acquirable, free, rows_where

SOON = 4.0
"""Seconds after which a request that was lost has had its second try, over a connection that works."""

NAME, LOST = "handed", b"handed"

KINDS = rows_where(lambda kind: kind.handed_on)

SEVERAL = rows_where(lambda kind: kind.several)

of_each_kind = pytest.mark.parametrize("kind", KINDS)

of_several_names = pytest.mark.parametrize("kind", SEVERAL)


async def offered(lock: Acquirable, ttl: float = 20) -> str:
    return await (await lock.acquire()).hand_off(ttl=ttl)


@either_loss
@of_each_kind
async def test_a_hand_off_and_an_adoption_whose_answers_are_lost_are_asked_for_again(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: str, how: Loss
) -> None:
    """The lease has one owner, or none once it is given up (W17)."""
    lock = KINDS[kind].make(client, NAME, ttl=20)
    for lose in (proxy.drop_next_reply, proxy.drop_next_request):
        lease = await lock.acquire()
        lose(LOST, how)
        text = await lease.hand_off()
        lose(LOST, how)
        adopted = await lock.adopt(text)
        assert adopted.fencing_token > lease.fencing_token
        assert adopted.held
        with pytest.raises(LeaseLostError):
            await KINDS[kind].make(redis, NAME).adopt(text)
        assert await adopted.renew()
        assert await adopted.release()
        await wait_until_only_residue(redis, within=SOON)


@pytest.mark.parametrize("what", ["hand_off", "adopt", "drop"])
@pytest.mark.parametrize("lost", ["request", "reply"])
@of_each_kind
async def test_what_is_cancelled_while_its_answer_is_lost_is_free_soon(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: str, what: str, lost: str
) -> None:
    """Whether Redis has got it or not. A text that was not adopted can be adopted until its TTL."""
    lock = KINDS[kind].make(client, NAME, ttl=20)
    lease = await lock.acquire()
    text = "" if what == "hand_off" else await lease.hand_off()
    (proxy.drop_next_request if lost == "request" else proxy.drop_next_reply)(LOST, "black_hole")
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "hand_off": lease.hand_off, "adopt": partial(lock.adopt, text), "drop": partial(lock.drop, text),
    }  # fmt: skip
    asking = asyncio.ensure_future(calls[what]())
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


@either_loss
@of_each_kind
async def test_a_touch_and_a_drop_whose_answers_are_lost_say_what_they_did(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: str, how: Loss
) -> None:
    lock = KINDS[kind].make(client, NAME, ttl=20)
    lease = await lock.acquire()
    text = await lease.hand_off()
    for lose in (proxy.drop_next_reply, proxy.drop_next_request):
        lose(LOST, how)
        assert await lock.touch(text, ttl=60) == lease.fencing_token
    assert all(holder.remaining > 50 for holder in await lock.holders())
    proxy.drop_next_reply(LOST, how)
    assert await lock.drop(text) is True
    assert await KINDS[kind].make(redis, NAME).touch(text) is None
    await wait_until_only_residue(redis, within=SOON)
    text = await offered(lock)
    proxy.drop_next_request(LOST, how)
    assert await lock.drop(text) is True
    assert await KINDS[kind].make(redis, NAME).drop(text) is False
    await wait_until_only_residue(redis, within=SOON)


@of_each_kind
async def test_a_drop_that_was_lost_while_another_process_adopted_says_so(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: str
) -> None:
    """Its second try finds nothing, and must not take that for the work of the first."""
    lock = KINDS[kind].make(client, NAME, ttl=20)
    text = await offered(lock)
    proxy.drop_next_request(b"{shop}" if kind in SEVERAL and kind != "multilock" else LOST, "black_hole")
    dropping = asyncio.ensure_future(lock.drop(text))
    await asyncio.sleep(0.1)
    adopted = await KINDS[kind].make(redis, NAME, ttl=20).adopt(text)
    assert await dropping is False
    assert await adopted.renew()
    assert await adopted.release()
    await wait_until_only_residue(redis, within=SOON)


@of_several_names
async def test_a_touch_or_drop_in_the_middle_of_an_adoption_leaves_it_to_the_adopter(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: str
) -> None:
    """The first name is the adopter's, the others are still offered: that is no lease of which a name is gone."""
    last = {"multilock": b"handed, third"}.get(kind, LOST)
    lock = KINDS[kind].make(client, NAME, ttl=20)
    beside = KINDS[kind].make(redis, NAME, ttl=20)
    for use in (beside.touch, beside.drop):
        text = await offered(lock)
        proxy.drop_next_request(last, "black_hole")
        adopting = asyncio.ensure_future(lock.adopt(text))
        await asyncio.sleep(0.1)
        assert not adopting.done()
        assert not await use(text)
        adopted = await adopting
        assert await adopted.renew()
        assert await adopted.release()
        await free(beside)


async def test_what_cannot_be_asked_raises_redis_pys_error_and_a_drop_goes_on(
    redis: Redis, proxy: FaultProxy, client: Redis
) -> None:
    lock = Lock(client, NAME, ttl=60)
    text = await offered(lock, ttl=60)
    proxy.black_hole = True
    answers = asyncio.gather(lock.touch(text), lock.drop(text), return_exceptions=True)
    async with in_time(10 + SLACK):
        assert all(isinstance(answer, UNREACHABLE) for answer in await answers)
    assert await Lock(redis, NAME).locked()
    proxy.black_hole = False
    await wait_until_only_residue(redis, within=2 * SOON)


async def test_a_loop_that_is_late_ends_no_session_between_two_names(client: Redis) -> None:
    """Its timer for idle sessions may run between the end of one name and that of the next."""

    async def be_late() -> None:
        while True:
            block_loop(0.55)  # longer than a session is kept without use
            await asyncio.sleep(0)

    lock = HierarchicalLock(client, "handed/on", ttl=20).write
    text = await offered(lock)
    late = asyncio.create_task(be_late())
    try:
        assert await lock.drop(text)
    finally:
        late.cancel()
