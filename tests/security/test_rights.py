"""A Redis user with exactly the rights of `examples/OPERATING.md` can do everything; an error names a missing one."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import AcquireTimeoutError, Lease, Lock, Semaphore
from aiolocks._grantors.session import Session
from aiolocks.cli._doctor import _examine
from aiolocks.cli._doctor._rights import BROADCASTS, WAKE_UPS, missing_rights
from tests.support.clients import OPERATING, documented_rights
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.primitives import ROWS, SOON, Row, as_a_stranger, queued
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.rest]

RULE = OPERATING.read_text(encoding="utf-8").split("<!-- acl -->")[1].split("```")[1].removeprefix("text").split()
RIGHTS = [right for right in documented_rights() if right[0] == "+"]
NEEDLESS = {"+unsubscribe"}
"""Sent at the end of a wait: a refusal is noticed by the server's ACL LOG alone."""


async def give(server: RedisServer, *rights: str, name: str = RULE[2]) -> str:
    admin: Any
    async with Redis.from_url(server.url) as admin:
        await admin.execute_command("ACL", "DELUSER", name)
        await admin.execute_command("ACL", "SETUSER", name, *RULE[3:5], *rights)
    return f"redis://{quote(name, safe='')}:{RULE[4][1:]}@127.0.0.1:{server.port}"


@asynccontextmanager
async def two_clients(url: str) -> AsyncIterator[tuple[Redis, Redis]]:
    async with Redis.from_url(url) as one, Redis.from_url(url) as other:
        yield one, other


async def test_the_rule_makes_a_user_with_a_password_keys_and_channels_of_the_prefix_and_commands() -> None:
    assert RULE[:2] == ["ACL", "SETUSER"]
    assert RULE[3:5] == ["on", ">secret"]
    assert RULE[5:] == documented_rights()
    assert RULE[5:8] == ["resetchannels", "~aiolocks:*", "&aiolocks:*"]
    assert len(RIGHTS) == len(RULE[8:])


@pytest.mark.parametrize("row", [row for row in ROWS if row.queue], ids=str)
async def test_the_documented_rights_are_enough_for_everything_at_full_speed(
    own_server: RedisServer, quick_sessions: None, caplog: pytest.LogCaptureFixture, row: Row
) -> None:
    slowest = 0.0
    async with two_clients(await give(own_server, *RULE[5:])) as (one, other), measured_lag() as lag:
        for _ in range(3):
            mine, theirs = row.make(one, "orders", ttl=3), row.make(other, "orders", ttl=3)
            leases = [await mine.acquire() for _ in range(row.places)]
            waiting = asyncio.ensure_future(theirs.acquire())
            await queued(mine, 1)
            assert all([await lease.renew() for lease in leases])
            assert await leases[0].guard(("SET", "aiolocks:guarded", 1)) == [b"OK"]
            with pytest.raises(AcquireTimeoutError):
                await as_a_stranger(mine.acquire(timeout=SOON))
            assert await as_a_stranger(mine.try_acquire()) is None
            released_at = time.monotonic()
            for lease in leases:
                await lease.release()
            lease = await waiting
            slowest = max(slowest, time.monotonic() - released_at)
            assert await lease.release()
    assert_within(slowest, 0.2 + SLACK * 0.1 + lag.worst, "the waiter was told")
    assert caplog.records == []


async def test_the_documented_rights_leave_no_refusal_in_the_log(own_server: RedisServer, quick_sessions: None) -> None:
    admin: Any
    url = await give(own_server, *RULE[5:])
    async with two_clients(url) as (one, other), Redis.from_url(own_server.url) as admin:
        with contextlib.suppress(ResponseError):  # Redis knows it from 7.2 on
            await admin.execute_command("ACL", "SETUSER", RULE[2], "+client|setinfo")
        await everything(one, other, "orders")
        async with asyncio.timeout(10):  # when a session ends, it unsubscribes
            while Session.begun(one.connection_pool) or Session.begun(other.connection_pool):
                await asyncio.sleep(0.01)
        assert await admin.execute_command("ACL", "LOG") == []


@pytest.mark.smoke
async def test_the_doctor_finds_nothing_missing_in_the_documented_rights(own_server: RedisServer) -> None:
    for more, not_ok in (
        ([], {"server", "replication", "eviction", "persistence"}),
        (["+info", "+config|get"], {"persistence"}),
    ):
        url = await give(own_server, *RULE[5:], *more)
        findings = {finding.check: finding.verdict for finding in await _examine(url, "here", 30, "aiolocks:")}
        assert {check for check, verdict in findings.items() if verdict != "ok"} == not_ok
        assert findings["eviction"] == ("ok" if more else "unknown")


async def test_a_missing_right_is_named_by_error_and_doctor(own_server: RedisServer, quick_sessions: None) -> None:
    async def try_without(lacking: str) -> object:
        url = await give(own_server, *(right for right in RULE[5:] if right != lacking), name=f"without{lacking}")
        async with two_clients(url) as (one, other):
            assert await missing_rights(one, "aiolocks:", f"probe{lacking}") == ([lacking.split("aiolocks")[0]], "")
            try:
                await everything(one, other, f"without {lacking}")
            except ResponseError as error:
                right = "~<prefix>*" if lacking[0] == "~" else lacking
                return (
                    re.match(rf"this Redis user lacks the right (\S+ or )*{re.escape(right)}( or \S+)*: ", str(error))
                    or error
                )
        return "nothing was refused"

    needed = [right for right in RULE[6:] if right not in NEEDLESS | WAKE_UPS and right[0] != "&"]
    outcomes = dict(zip(needed, await asyncio.gather(*map(try_without, needed)), strict=True))
    assert len(needed) > 20
    assert {lacking: outcome for lacking, outcome in outcomes.items() if not isinstance(outcome, re.Match)} == {}


async def test_without_a_channel_right_waiters_get_their_turn_by_asking_and_the_doctor_names_it(
    own_server: RedisServer, quick_sessions: None
) -> None:
    async def try_without(lacking: str) -> float:
        rights = (right for right in RULE[5:] if right != lacking and right[0] != lacking)
        async with two_clients(await give(own_server, *rights, name=f"without{lacking}")) as (one, other):
            assert await missing_rights(one, "aiolocks:", f"probe{lacking}") == ([lacking], "")
            return await everything(one, other, f"without {lacking}")

    needless = sorted(BROADCASTS | {"&"} | NEEDLESS)
    async with measured_lag() as lag:
        slowest = dict(zip(needless, await asyncio.gather(*map(try_without, needless)), strict=True))
    print(slowest)
    assert_within(max(slowest.values()), 1.0 + SLACK * 0.1 + lag.worst)


async def everything(one: Redis, other: Redis, name: str) -> float:
    """Use each right: a waiter, weights, renewals, a lapsed lease. Return the slowest hand-over, in seconds."""
    slowest = 0.0
    scraper = Semaphore(one, name, 2, ttl=1.5)
    for take, mine, theirs in (
        (Lock(one, name, ttl=1.5).acquire, Lock(one, name, ttl=1.5), Lock(other, name, ttl=1.5)),
        (partial(scraper.acquire, permits=2), scraper, Semaphore(other, name, 2, ttl=1.5)),
    ):
        lease = await take()
        waiting = asyncio.ensure_future(theirs.acquire(timeout=10))
        try:
            while not waiting.done() and not (await mine.statistics()).waiting:
                await asyncio.sleep(0.01)
            assert await lease.renew()
            released_at = time.monotonic()
            await lease.release()
            following = await waiting
            slowest = max(slowest, time.monotonic() - released_at)
            await following.release()
        finally:
            waiting.cancel()
            for left in (lease, *await asyncio.gather(waiting, return_exceptions=True)):
                if isinstance(left, Lease):
                    with contextlib.suppress(ResponseError):
                        await left.release()
    async with Semaphore(one, name, 2):
        lapsing = await Semaphore(one, name, 2, ttl=0.1, renew=False).acquire()
        try:
            while (await scraper.statistics()).holders > 1:
                await asyncio.sleep(0.01)
        finally:
            assert not await lapsing.release()
    return slowest
