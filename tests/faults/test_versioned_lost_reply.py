"""A write whose answer is lost is done once, and is never taken for somebody else's."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import Versioned
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import Loss, either_loss, retrying

pytestmark = either_loss

KEY = "test:stock"


@pytest_asyncio.fixture
async def stock(proxy: FaultProxy) -> AsyncIterator[Versioned]:
    """One that is asked through the proxy."""
    async with retrying(proxy) as client:
        yield Versioned(client, KEY)


async def test_a_lost_answer_is_no_conflict(redis: Redis, stock: Versioned, proxy: FaultProxy, how: Loss) -> None:
    _, version = await stock.read()
    proxy.drop_next_reply(KEY.encode(), how)
    version = await stock.write("ours", version)
    assert await stock.read() == (b"ours", version)


async def test_a_lost_answer_is_no_conflict_though_others_have_written_since(
    redis: Redis, stock: Versioned, proxy: FaultProxy, how: Loss
) -> None:
    """An update would otherwise be done twice."""
    calls = 0

    def one_more(value: bytes | None) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            proxy.drop_next_reply(KEY.encode(), how)
        return int(value or 0) + 1

    updating = asyncio.create_task(stock.update(one_more))
    while await redis.get(KEY) is None:
        await asyncio.sleep(0)
    await Versioned(redis, KEY).update(lambda value: int(value or 0) + 10)
    assert (await updating)[0] == 1
    assert calls == 1
    assert await redis.get(KEY) == b"11"
