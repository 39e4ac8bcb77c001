"""Paths under faults: a reply that is lost at any moment takes nothing twice, and leaves nothing at any level."""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import HierarchicalLock
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import retrying
from tests.faults.support.residue import wait_until_only_residue

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]

PATH = "shop/orders/42"
KEYS = [b"aiolocks:hierarchy:{shop}", b"aiolocks:hierarchy:{shop}/orders", b"aiolocks:hierarchy:{shop}/orders/42"]
IN_REQUESTS = {
    **{name: key + b"\r\n" for name, key in zip(["root", "table", "row"], KEYS, strict=True)},
    "fence": b"%b:meta\r\n$%d\r\n%b:meta\r\n" % (KEYS[0], len(KEYS[1] + b":meta"), KEYS[1]),
}
"""What only the request for that level has in it, or the one for the fencing token of all."""


@pytest_asyncio.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Redis]:
    """A client through the proxy that retries."""
    async with retrying(proxy) as through_proxy:
        yield through_proxy


@pytest.mark.parametrize("how", ["reset", "black_hole"])
@pytest.mark.parametrize("lost", IN_REQUESTS)
async def test_a_path_is_held_once_though_a_reply_is_lost(
    redis: Redis, client: Redis, proxy: FaultProxy, lost: str, how: Literal["reset", "black_hole"]
) -> None:
    proxy.drop_next_reply(IN_REQUESTS[lost], how)
    async with HierarchicalLock(client, PATH, ttl=10).write as lease:
        assert [await redis.zcard(key) for key in KEYS] == [1, 1, 1]
        assert len(set(lease.fencing_tokens.values())) == 1
    await wait_until_only_residue(redis, within=3)


@pytest.mark.parametrize("after", [0.0, 0.005, 0.02, 0.05, 0.1])
async def test_an_acquire_that_is_cancelled_at_any_moment_leaves_no_level_held(
    redis: Redis, client: Redis, proxy: FaultProxy, after: float
) -> None:
    proxy.delay_requests = 0.02
    acquiring = asyncio.create_task(HierarchicalLock(client, PATH, ttl=10).write.acquire())
    await asyncio.sleep(after)
    acquiring.cancel()
    await asyncio.wait([acquiring])
    if not acquiring.cancelled():
        await acquiring.result().release()
    await wait_until_only_residue(redis, within=3)
