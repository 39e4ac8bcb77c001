"""A primary that is demoted while commands are guarded: they are run once, where it is allowed, and nothing is lost."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import HierarchicalLock, Lock
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import retrying
from tests.support.primitives import until
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults, pytest.mark.leaves_residue]

HELD_BACK = 0.4
"""Seconds: enough for the server to be asked a few things meanwhile."""


@pytest_asyncio.fixture
async def proxy(own_server: RedisServer) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the server that is demoted."""
    async with FaultProxy(path=own_server.socket_path) as running:
        yield running


@pytest_asyncio.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Redis]:
    async with retrying(proxy) as through_proxy:
        yield through_proxy


@pytest_asyncio.fixture
async def admin(own_server: RedisServer) -> AsyncIterator[Any]:
    async with Redis.from_url(own_server.url) as direct:
        yield direct


async def demote(admin: Any) -> None:
    """Make it a replica of nobody who answers; it keeps what it has."""
    await admin.execute_command("REPLICAOF", "127.0.0.1", 1)
    await admin.config_resetstat()


async def promote(admin: Any, *, after: int) -> None:
    """Make it the primary again when it has run so many scripts."""

    async def asked() -> bool:
        statistics: dict[str, dict[str, int]] = await admin.info("commandstats")
        return sum(statistics.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha")) >= after

    await until(asked)
    await admin.execute_command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize(
    "commands",
    [[("INCR", "n")], [("GET", "k"), ("INCR", "n")], [("GET", "k"), ("GET", "n")]],
    ids=["a write", "a write behind a read", "reads"],
)
async def test_commands_sent_to_a_demoted_primary_run_once_on_the_new_primary(
    client: Redis, admin: Any, commands: list[tuple[str, str]]
) -> None:
    """A replica must not answer reads either: what it has is of the past."""
    async with Lock(client, "guarding") as lease:
        await demote(admin)
        guarding = asyncio.create_task(lease.guard(*commands))
        await promote(admin, after=1)
        await admin.set("k", "of now")
        answers = await guarding
    writes = ("INCR", "n") in commands
    assert await admin.get("n") == (b"1" if writes else None)
    assert answers[-1] == (1 if writes else None)
    assert answers[0] == (1 if len(commands) == 1 else b"of now")


async def test_a_release_that_was_on_its_way_behind_it_is_not_taken_for_a_lease_that_was_gone(
    client: Redis, admin: Any, proxy: FaultProxy
) -> None:
    """The connection is given up when the first answer shows the demotion; what the second says is never read."""
    guarding, leaving = await Lock(client, "guarding").acquire(), await Lock(client, "leaving").acquire()
    proxy.delay_next_reply(HELD_BACK, b":g:")
    await demote(admin)
    guarded = asyncio.create_task(guarding.guard(("INCR", "n")))
    await promote(admin, after=1)
    released = asyncio.create_task(leaving.release())
    await until(lambda: is_gone(admin, "aiolocks:lock:{leaving}"))
    assert not guarded.done(), "too late: the answers were to come together"
    assert await released
    assert await guarded == [1]
    assert await guarding.release()


async def is_gone(admin: Any, key: str) -> bool:
    return not await admin.exists(key)


async def test_a_grant_that_was_on_its_way_behind_it_is_had_once(client: Redis, admin: Any, proxy: FaultProxy) -> None:
    guarding = await Lock(client, "guarding").acquire()
    proxy.delay_next_reply(HELD_BACK, b":g:")
    await demote(admin)
    guarded = asyncio.create_task(guarding.guard(("INCR", "n")))
    await promote(admin, after=1)
    acquired = asyncio.create_task(Lock(client, "coming").acquire())
    await until(lambda: admin.exists("aiolocks:lock:{coming}"))
    fence = int((await admin.get("aiolocks:lock:{coming}")).split()[1])
    assert not guarded.done(), "too late: the answers were to come together"
    lease = await acquired
    assert lease.fencing_token == fence
    assert await lease.release()
    assert await guarded == [1]
    assert await guarding.release()


async def test_levels_that_were_granted_before_the_demotion_get_their_fencing_token_after_it(
    client: Redis, admin: Any, proxy: FaultProxy
) -> None:
    proxy.delay_next_request(HELD_BACK, b"given, newest, modes, alike")
    acquiring = asyncio.create_task(HierarchicalLock(client, "shop/orders").write.acquire())
    await until(lambda: admin.exists("aiolocks:hierarchy:{shop}/orders"))
    await demote(admin)
    await promote(admin, after=1)
    lease = await acquiring
    assert lease.fencing_token > 0
    assert await lease.release()
