"""The fault proxy breaks one direction, one request or one connection, and leaves the rest alone."""

import asyncio
import time

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks.testing import FaultProxy
from tests.support.lateness import SLACK, in_time
from tests.support.network import client_of, command, until, until_exists

pytestmark = [pytest.mark.asyncio, pytest.mark.rest]


async def test_a_dropped_request_never_reaches_redis_and_resets_the_connection(proxy: FaultProxy, redis: Redis) -> None:
    proxy.drop_next_request(b"test:a")
    async with client_of(proxy) as client:
        await client.set("test:b", 1)
        with pytest.raises(RedisConnectionError):
            await client.set("test:a", 1)
        await client.ping()
        assert await redis.exists("test:a") == 0
        await client.set("test:a", 1)
        assert await redis.exists("test:a") == 1


async def test_what_follows_a_dropped_request_is_lost_with_it(proxy: FaultProxy, redis: Redis) -> None:
    proxy.drop_next_request(b"test:b", how="black_hole")
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"".join(command(b"SET", key, b"") for key in (b"test:a", b"test:b", b"test:c")))
    assert await reader.readexactly(5) == b"+OK\r\n"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.read(1)
    assert await redis.exists("test:a", "test:b", "test:c") == 1
    writer.close()


async def test_a_black_hole_for_requests_lets_replies_pass(proxy: FaultProxy, redis: Redis) -> None:
    async with client_of(proxy, max_connections=1) as client, client.pubsub() as pubsub:
        await pubsub.subscribe("news")
        await pubsub.get_message(timeout=5)
        proxy.black_hole = "requests"
        await pubsub.subscribe("more")
        await redis.publish("news", "hello")
        assert (await pubsub.get_message(timeout=5) or {})["data"] == b"hello"
        assert await redis.pubsub_numsub("more") == [(b"more", 0)]
        proxy.black_hole = False


async def test_a_black_hole_for_replies_lets_requests_pass(proxy: FaultProxy, redis: Redis) -> None:
    async with client_of(proxy) as client:
        await client.ping()
        proxy.black_hole = "replies"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.set("test:a", 1)
        await until_exists(redis, "test:a")
        proxy.black_hole = False


@pytest.mark.smoke
async def test_an_unknown_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="replies"):
        FaultProxy().black_hole = "both"  # type: ignore[assignment]  # what callers without a checker set


@pytest.mark.parametrize("way", ["request", "reply"])
async def test_one_message_can_be_late_and_others_are_not(proxy: FaultProxy, way: str) -> None:
    async with client_of(proxy) as client:
        await client.ping()
        order = proxy.delay_next_request if way == "request" else proxy.delay_next_reply
        order(0.2, b"SET")
        async with in_time(SLACK * 0.05):
            await client.get("test:a")
        begun = time.monotonic()
        await client.set("test:a", 1)
        assert time.monotonic() - begun >= 0.2
        async with in_time(SLACK * 0.05):
            await client.set("test:a", 2)


async def test_only_connections_that_sent_a_verb_can_be_cut(proxy: FaultProxy) -> None:
    async with client_of(proxy) as client, client.pubsub() as pubsub:
        await pubsub.subscribe("news")
        await pubsub.get_message(timeout=5)
        await client.ping()
        assert proxy.connections_open == 2
        proxy.cut_all(b"SUBSCRIBE")
        await until(lambda: proxy.connections_open == 1)
        with pytest.raises(RedisConnectionError):
            await pubsub.get_message(timeout=5)
        connections = proxy.connections_total
        assert await client.ping()
        assert proxy.connections_total == connections
