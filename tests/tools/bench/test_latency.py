"""The far server of the bench: it is as far away as asked, and what a version cannot do stands in its own row."""

import asyncio
import time

import pytest
from redis.asyncio import Redis

from bench.delaying import delayed
from bench.figures import Run
from bench.scale import TINY
from bench.scenarios import latency
from tests.support.servers import RedisServer

pytestmark = pytest.mark.rest

ONE_WAY = 0.05


@pytest.mark.redis
@pytest.mark.asyncio
async def test_each_way_takes_the_delay_and_order_is_kept() -> None:
    with RedisServer() as server:
        async with delayed(server.tcp_url, ONE_WAY) as url, Redis.from_url(url) as redis:
            values = [bytes(1_000) + b"%d" % number for number in range(1_000)]  # many pieces of what is read at once
            begun = time.monotonic()
            await redis.rpush("list", *values)
            assert time.monotonic() - begun >= 2 * ONE_WAY
            assert await redis.lrange("list", 0, -1) == values


@pytest.mark.redis
@pytest.mark.asyncio
async def test_a_closed_connection_is_closed_at_the_server_and_others_go_on() -> None:
    with RedisServer() as server:
        async with delayed(server.tcp_url, 0.0) as url, Redis.from_url(url) as redis:
            async with Redis.from_url(url) as other:
                await other.ping()
            async with asyncio.timeout(10):
                while len(await redis.client_list()) > 1:
                    await asyncio.sleep(0.01)


def test_what_a_version_cannot_do_is_said_in_its_own_row() -> None:
    run = Run({"ping_ms": 1.0, "ping_times_ping": 1.0, "block_ms": 2.0, "block_times_ping": 2.0}, (latency.NO_OPTION,))
    [table] = latency.report({"aiolocks, 1 ms": [run]}, TINY).tables
    told = {line.split(" | ")[0].strip("| "): line for line in table.splitlines()[2:]}
    assert list(told) == ["PING", "aiolocks async with", "aiolocks async with, wait_release=False"]
    assert [row for row, line in told.items() if latency.NO_OPTION in line] == [list(told)[2]]
