"""Hundreds of leases of all kinds are renewed by a few requests; what befalls one of them is its own affair (W21)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from redis.asyncio import Redis

from aiolocks import Lease, Lock, RWLock, Semaphore
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]

TTL = 6.0
EACH = 80
"""Leases of each of three kinds."""


@asynccontextmanager
async def many_leases(client: Redis, watchdog: Literal["task", "thread"] = "task") -> AsyncIterator[list[Lease]]:
    """Hold locks, permits of a few semaphores, and pages to read and to write."""
    options: dict[str, Any] = {"ttl": TTL, "on_lost": "flag", "watchdog": watchdog}
    acquiring: list[Any] = []
    for number in range(EACH):
        page = RWLock(client, f"a{number}", **options)
        acquiring += [
            Lock(client, f"a{number}", **options),
            Semaphore(client, f"a{number % 20}", EACH, **options),
            page.read if number % 2 else page.write,
        ]
    leases: list[Lease] = await asyncio.gather(*(each.acquire() for each in acquiring))
    yield leases
    await asyncio.gather(*(lease.release() for lease in leases))


async def runs(redis: Any) -> int:
    statistics = await redis.info("commandstats")
    return sum(int(statistics.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha"))


@pytest.mark.parametrize("watchdog", ["task", "thread"])
async def test_all_are_renewed_by_fewer_requests_than_there_are_leases(
    own: Redis, other: Redis, watchdog: Literal["task", "thread"]
) -> None:
    async with many_leases(own, watchdog) as leases:
        before = await runs(other)
        await asyncio.sleep(1.5 * TTL)
        assert all(lease.held for lease in leases)
        # In that time each is renewed four times, or three where a busy machine is late.
        assert await runs(other) - before < 2 * len(leases)


async def test_without_the_right_to_one_key_that_lease_alone_runs_out(own_server: RedisServer, own: Any) -> None:
    """Redis then refuses the whole request, and each lease is asked for by itself."""
    await own.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "+@all", "~aiolocks:*", "&aiolocks:*")
    url = f"redis://worker:secret@127.0.0.1:{own_server.port}"
    async with Redis.from_url(url) as client, many_leases(client) as leases:
        async with Lock(client, "z", ttl=TTL, on_lost="flag") as forbidden:
            await own.execute_command("ACL", "SETUSER", "worker", "resetkeys", "~aiolocks:*{a*")
            await asyncio.sleep(1.2 * TTL)
            assert forbidden.lost
            assert all(lease.held for lease in leases)
            await own.execute_command("ACL", "SETUSER", "worker", "resetkeys", "~aiolocks:*")
