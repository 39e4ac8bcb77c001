"""`wait_release=False`: a block ends when its release has left, and what its session asks goes behind that (W24)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lock
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import Loss, either_loss
from tests.support.inside import limit_unawaited
from tests.support.network import until
from tests.support.primitives import free, one_of_each_family, rows_where

MANY = 50
"""Times that what may go wrong is tried."""

KINDS = {row.id: row.make for row in rows_where(shared=False).values()}

every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@every_kind
async def test_a_block_ends_although_nothing_is_answered(
    redis: Redis, proxy: FaultProxy, client: Redis, caplog: pytest.LogCaptureFixture, make: Callable[..., Any]
) -> None:
    async with make(client, "silent", wait_release=False):
        proxy.hold_requests()
    assert not caplog.records, "it has waited for as long as a block waits"
    assert await make(redis, "silent").locked()
    proxy.release_requests()
    await free(make(redis, "silent"))
    assert not caplog.records


@every_kind
async def test_a_block_s_own_lease_is_in_nobodys_way_behind_it(redis: Redis, make: Callable[..., Any]) -> None:
    lock = make(redis, "behind", wait_release=False)
    for _ in range(MANY):
        async with lock:
            pass
        await taken_at_once(make(redis, "behind"))
        async with lock:
            pass
        assert not await make(redis, "behind").locked()


async def taken_at_once(lock: Any) -> None:
    lease = await lock.try_acquire()
    assert lease is not None, "its own lease was in the way"
    await lease.release()


@either_loss
@pytest.mark.parametrize("way", ["request", "reply"])
@pytest.mark.parametrize("kind", [*one_of_each_family(), "multilock"])
async def test_a_release_that_is_lost_goes_first_over_the_next_connection(
    proxy: FaultProxy, client: Redis, kind: str, way: str, how: Loss
) -> None:
    lock = KINDS[kind](client, "lost", wait_release=False, ttl=20)
    for _ in range(3):
        async with lock:
            (proxy.drop_next_request if way == "request" else proxy.drop_next_reply)(b"lost", how)
        await taken_at_once(lock)


async def test_what_waits_for_a_connection_is_sent_behind_the_releases(proxy: FaultProxy, client: Redis) -> None:
    """They failed with the connection; what was held back meanwhile would overtake them."""

    async def leave_and_ask(lock: Lock) -> None:
        async with lock:
            await asyncio.sleep(0.05)
            proxy.hold_requests()
        proxy.cut_all()
        proxy.release_requests()
        await taken_at_once(lock)

    locks = [Lock(client, f"crowd:{number}", wait_release=False, ttl=20) for number in range(MANY)]
    await asyncio.gather(*map(leave_and_ask, locks))


@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
async def test_a_lease_taken_away_is_in_the_log(redis: Redis, caplog: pytest.LogCaptureFixture, on_lost: Any) -> None:
    async with Lock(redis, "taken", wait_release=False, on_lost=on_lost):
        await redis.flushall()
    await until(lambda: bool(caplog.records))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "lock 'taken': it is gone from the server" in record.getMessage()


async def test_a_lease_by_hand_is_waited_for(redis: Redis, proxy: FaultProxy, client: Redis) -> None:
    lease = await Lock(client, "by hand", wait_release=False).acquire()
    proxy.delay_replies = 0.05
    assert await lease.release()
    assert not await Lock(redis, "by hand").locked()


async def test_too_many_that_are_not_answered_are_waited_for(
    proxy: FaultProxy, client: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or a server that does not read would be sent ever more."""
    limit_unawaited(monkeypatch, 2)
    locks = [Lock(client, f"many:{number}", wait_release=False, ttl=3) for number in range(3)]
    blocks = [await lock.acquire() for lock in locks]
    proxy.hold_requests()
    for lease in blocks[:2]:
        async with lease:
            pass
    assert not caplog.records
    async with blocks[2]:
        pass
    assert "could not be confirmed" in caplog.text
    proxy.release_requests()
    for lock in locks:
        await free(lock)


@every_kind
async def test_a_release_whose_script_the_server_has_forgotten_is_not_overtaken(
    redis: Redis, another: Redis, make: Callable[..., Any]
) -> None:
    """F12: another client has brought back the script that grants, and not the one that releases."""
    lock = make(redis, "forgotten", wait_release=False)
    for _ in range(MANY // 5):
        async with lock:
            await redis.script_flush()
            held = await make(another, "another").acquire()
        await taken_at_once(lock)
        async with lock:
            await redis.script_flush()
            await held.release()
            held = await make(another, "another").acquire()
        assert not await make(redis, "forgotten").locked()
        await held.release()
