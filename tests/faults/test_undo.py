"""What was held or asked for ends on the server soon, although the connection went silent under its undo."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, Redlock
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import retrying
from tests.faults.support.residue import alive, wait_until_only_residue
from tests.support.lateness import SLACK, TooLateError, assert_within
from tests.support.primitives import Acquirable, rows_where, until
from tests.support.servers import RedisServer

SOON = 2.0
"""Seconds after which an undo has had its second try, over a connection that works."""

NAME, LOST = "undone", b"undone"


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()


KINDS = rows_where(without={"redlock": "its undo at each server is tested below"})

of_each_kind = pytest.mark.parametrize("kind", KINDS)
with_either_watchdog = pytest.mark.parametrize("watchdog", ["task", "thread"])


@pytest.mark.parametrize("how", ["block", "cancelled block", "by hand"])
@with_either_watchdog
@of_each_kind
async def test_a_lease_whose_release_gets_lost_is_free_soon(
    redis: Redis, proxy: FaultProxy, caplog: pytest.LogCaptureFixture,
    kind: str, watchdog: Literal["task", "thread"], how: str,
) -> None:  # fmt: skip
    """It is the last thing that its session has to do, and the session must not end before that is done."""
    entered = asyncio.Event()

    async def hold(lock: Acquirable) -> None:
        async with lock:
            entered.set()
            if how == "block":
                proxy.drop_next_request(LOST, "black_hole")
            else:
                await asyncio.sleep(60)

    async with retrying(proxy) as client:
        lock = KINDS[kind].make(client, NAME, ttl=30, watchdog=watchdog)
        if how == "by hand":
            lease = await lock.acquire()
            proxy.drop_next_request(LOST, "black_hole")
            assert await lease.release()
        else:
            holding = asyncio.create_task(hold(lock))
            await entered.wait()
            if how == "cancelled block":
                proxy.drop_next_request(LOST, "black_hole")
                await cancelled(holding)
            await asyncio.wait((holding,))
    await wait_until_only_residue(redis, within=SOON)
    if how == "block" and caplog.records:
        raise TooLateError("it was not confirmed while the block was being left")


async def test_a_block_whose_release_gets_lost_twice_is_free_soon(redis: Redis, proxy: FaultProxy) -> None:
    async with retrying(proxy) as client, Lock(client, NAME, ttl=30):
        proxy.drop_next_request(LOST, "black_hole")
        proxy.drop_next_request(LOST, "black_hole")
    await wait_until_only_residue(redis, within=SOON)


@of_each_kind
async def test_an_acquire_that_is_cancelled_while_its_grant_gets_lost_holds_nothing_soon(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: str
) -> None:
    proxy.drop_next_reply(LOST, "black_hole")
    asking = asyncio.create_task(KINDS[kind].make(client, NAME, ttl=30).acquire())
    await until(lambda: alive(redis))
    await cancelled(asking)
    await wait_until_only_residue(redis, within=SOON)


@of_each_kind
async def test_a_waiter_that_is_cancelled_while_its_undo_gets_lost_is_gone_soon(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: str
) -> None:
    held = await (KINDS[kind].filler or KINDS[kind].make)(redis, NAME, ttl=30).acquire()
    waiting = asyncio.create_task(KINDS[kind].make(client, NAME, ttl=30).acquire())
    while not any(":queue" in line for line in await alive(redis)):
        await asyncio.sleep(0.002)
    proxy.drop_next_request(LOST, "black_hole")
    await cancelled(waiting)
    while any(":queue" in line for line in await alive(redis)):
        await asyncio.sleep(0.01)
    await held.release()


async def test_a_redlock_of_which_one_server_went_silent_is_free_on_all_soon(
    servers: Callable[..., RedisServer], proxy: FaultProxy, client: Redis, redis: Redis
) -> None:
    async with Redis.from_url(servers().url) as second, Redis.from_url(servers().url) as third:
        async with Redlock([client, second, third], NAME, ttl=30):
            proxy.drop_next_request(LOST, "black_hole")
        for each in (redis, second, third):
            await wait_until_only_residue(each, within=SOON)


async def test_the_undo_of_a_request_answered_too_late_keeps_the_session_no_longer_than_its_lease_lasts(
    redis: Redis, proxy: FaultProxy
) -> None:
    """When it was given up it might still have been on its way, which is a reason to try for a minute."""
    ttl = 1.0
    async with retrying(proxy) as client:
        assert await client.ping()
        proxy.delay_replies = 0.15
        asking = asyncio.create_task(Lock(client, NAME, ttl=ttl).acquire())
        await until(lambda: alive(redis))
        proxy.black_hole = "requests"
        given_up_at = time.monotonic()
        await cancelled(asking)
    seen_at = given_up_at
    while time.monotonic() < given_up_at + ttl + 5.0:  # between two tries there is none for a second at most
        await asyncio.sleep(0.01)
        if proxy.connections_open:
            seen_at = time.monotonic()
    assert_within(seen_at - given_up_at, 0.15 + ttl + 1.0 + SLACK * 0.2)


async def test_others_that_wait_long_for_an_answer_do_not_keep_a_release_waiting(
    redis: Redis, proxy: FaultProxy, client: Redis
) -> None:
    async with Lock(client, NAME, ttl=30):
        proxy.black_hole = True
        asking = asyncio.create_task(Lock(client, "another").statistics())  # it has ten seconds
        await asyncio.sleep(0.01)
        proxy.black_hole = False
        left_at = time.monotonic()
    await wait_until_only_residue(redis, within=SOON - (time.monotonic() - left_at))
    asking.cancel()
    await asyncio.wait((asking,))
