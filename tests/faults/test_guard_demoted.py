"""A primary that is demoted while commands are guarded: they are run once, where it is allowed, and nothing is lost."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import HierarchicalLock, Lock
from aiolocks.testing import FaultProxy
from tests.support.network import until_exists
from tests.support.primitives import until
from tests.support.servers import RedisServer

pytestmark = pytest.mark.leaves_residue


@pytest_asyncio.fixture
async def proxy(own_server: RedisServer) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the server that is demoted."""
    async with FaultProxy(path=own_server.socket_path) as running:
        yield running


async def demote(own: Any) -> None:
    """Make it a replica of nobody who answers; it keeps what it has."""
    await own.execute_command("REPLICAOF", "127.0.0.1", 1)
    await own.config_resetstat()


async def promote(own: Any) -> None:
    """Make it the primary again when it has run a script."""

    async def asked() -> bool:
        return not {"cmdstat_eval", "cmdstat_evalsha"}.isdisjoint(await own.info("commandstats"))

    await until(asked)
    await own.execute_command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize(
    "commands",
    [[("INCR", "n")], [("GET", "k"), ("INCR", "n")], [("GET", "k"), ("GET", "n")]],
    ids=["a write", "a write behind a read", "reads"],
)
async def test_commands_sent_to_a_demoted_primary_run_once_on_the_new_primary(
    client: Redis, own: Any, commands: list[tuple[str, str]]
) -> None:
    """A replica must not answer reads either: what it has is of the past."""
    async with Lock(client, "guarding") as lease:
        await demote(own)
        guarding = asyncio.create_task(lease.guard(*commands))
        await promote(own)
        await own.set("k", "of now")
        answers = await guarding
    writes = ("INCR", "n") in commands
    assert await own.get("n") == (b"1" if writes else None)
    assert answers[-1] == (1 if writes else None)
    assert answers[0] == (1 if len(commands) == 1 else b"of now")


async def test_levels_that_were_granted_before_the_demotion_get_their_fencing_token_after_it(
    client: Redis, own: Any, proxy: FaultProxy
) -> None:
    proxy.delay_next_request(0.4, b"given, newest, modes, alike")  # so that it is asked for a few things meanwhile
    acquiring = asyncio.create_task(HierarchicalLock(client, "shop/orders").write.acquire())
    await until_exists(own, "aiolocks:hierarchy:{shop}/orders")
    await demote(own)
    await promote(own)
    lease = await acquiring
    assert lease.fencing_token > 0
    assert await lease.release()
