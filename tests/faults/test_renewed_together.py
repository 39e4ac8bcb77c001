"""Hundreds of leases of all kinds are renewed by a few requests; what befalls one of them is its own affair (W21)."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from redis.asyncio import Redis

from aiolocks import Lease, Lock, RWLock, Semaphore
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]

TTL = 6.0
EACH = 80
"""Leases of each of three kinds."""


@asynccontextmanager
async def many_leases(
    client: Redis, *, watchdog: Literal["task", "thread"] = "task"
) -> AsyncIterator[tuple[list[Lease], list[str]]]:
    """Hold locks, permits of a few semaphores, and pages to read and to write; with the key of each."""
    options: dict[str, Any] = {"ttl": TTL, "on_lost": "flag", "watchdog": watchdog}
    acquiring: list[Any] = []
    keys: list[str] = []
    for number in range(EACH):
        page = RWLock(client, f"a{number}", **options)
        acquiring += [
            Lock(client, f"a{number}", **options),
            Semaphore(client, f"a{number % 20}", EACH, **options),
            page.read if number % 2 else page.write,
        ]
        keys += [f"aiolocks:{kind}:{{a{number}}}" for kind in ("lock", "semaphore", "readwrite")]
    leases: list[Lease] = await asyncio.gather(*(each.acquire() for each in acquiring))
    try:
        yield leases, keys
    finally:
        await asyncio.gather(*(lease.release() for lease in leases))


async def runs(redis: Any) -> int:
    statistics = await redis.info("commandstats")
    return sum(int(statistics.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha"))


def lost(leases: Sequence[Lease]) -> list[int]:
    return [number for number, lease in enumerate(leases) if not lease.held]


@pytest.mark.parametrize("watchdog", ["task", "thread"])
async def test_all_are_renewed_by_fewer_requests_than_there_are_leases(
    own_server: RedisServer, watchdog: Literal["task", "thread"]
) -> None:
    async with (
        Redis.from_url(own_server.url) as client,
        Redis.from_url(own_server.url) as admin,
        many_leases(client, watchdog=watchdog) as (leases, _),
    ):
        before = await runs(admin)
        await asyncio.sleep(1.5 * TTL)
        assert not lost(leases)
        # In that time each is renewed four times, or three where a busy machine is late.
        assert await runs(admin) - before < 2 * len(leases)


@pytest.mark.parametrize("kind", [0, 1, 2])
async def test_of_leases_renewed_together_a_vanished_lease_alone_is_lost_at_its_next_renewal(
    own_server: RedisServer, kind: int
) -> None:
    async with (
        Redis.from_url(own_server.url) as client,
        Redis.from_url(own_server.url) as admin,
        measured_lag() as lag,
        many_leases(client) as (leases, keys),
    ):
        gone = 3 * 50 + kind
        base = keys[gone] if kind != 1 else "aiolocks:semaphore:{a10}"
        await asyncio.sleep(TTL / 4)
        if kind == 0:
            await admin.delete(base)
        else:
            await admin.zrem(base, leases[gone].token)
        deleted_at = time.monotonic()
        assert await leases[gone].wait_lost()
        took = time.monotonic() - deleted_at
        await asyncio.sleep(TTL / 2)
        assert lost(leases) == [gone]
    assert_within(took, 1.1 * TTL / 3 + SLACK * 0.1 + lag.worst)


async def test_a_key_of_another_type_costs_no_other_its_lease(own_server: RedisServer) -> None:
    async with (
        Redis.from_url(own_server.url) as client,
        Redis.from_url(own_server.url) as admin,
        many_leases(client) as (leases, keys),
    ):
        spoilt = [3 * 50, 3 * 51 + 2]
        for number in spoilt:
            await admin.delete(keys[number])
            await admin.rpush(keys[number], "somebody else's")
        await asyncio.sleep(1.2 * TTL)
        assert lost(leases) == spoilt


async def test_without_the_right_to_one_key_that_lease_alone_runs_out(own_server: RedisServer) -> None:
    """Redis then refuses the whole request, and each lease is asked for by itself."""
    admin: Any
    async with Redis.from_url(own_server.url) as admin:
        await admin.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "+@all", "~aiolocks:*", "&aiolocks:*")
        url = f"redis://worker:secret@127.0.0.1:{own_server.port}"
        async with Redis.from_url(url) as client, many_leases(client) as (leases, _):
            async with Lock(client, "z", ttl=TTL, on_lost="flag") as forbidden:
                await admin.execute_command("ACL", "SETUSER", "worker", "resetkeys", "~aiolocks:*{a*")
                await asyncio.sleep(1.2 * TTL)
                assert forbidden.lost
                assert not lost(leases)
                await admin.execute_command("ACL", "SETUSER", "worker", "resetkeys", "~aiolocks:*")
