"""The fault proxy loses requests and replies, cuts and refuses connections: one or all, in one direction or both."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Literal

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks.testing import FaultProxy
from tests.support.lateness import SLACK, in_time
from tests.support.network import client_of, command, until, until_exists

pytestmark = [pytest.mark.rest, pytest.mark.asyncio]


@pytest_asyncio.fixture(params=[2, 3], ids=["resp2", "resp3"])
async def client(proxy: FaultProxy, request: pytest.FixtureRequest) -> AsyncIterator[Redis]:
    """A client behind the proxy, with one connection that is open already."""
    async with client_of(proxy, protocol=request.param, max_connections=1) as behind:
        await behind.ping()
        yield behind


@pytest.mark.smoke
async def test_a_dropped_reply_resets_the_connection_once_all_is_done(
    proxy: FaultProxy, client: Redis, redis: Redis
) -> None:
    proxy.drop_next_reply(b"test:a")
    await client.set("test:b", 1)
    with pytest.raises(RedisConnectionError):
        await client.set("test:a", 1)
    assert await redis.exists("test:a", "test:b") == 2
    await client.set("test:a", 2)
    assert await redis.get("test:a") == b"2"


@pytest.mark.parametrize(("how", "error"), [("reset", ConnectionResetError), ("black_hole", TimeoutError)])
async def test_in_a_pipeline_the_replies_before_the_dropped_one_arrive(
    proxy: FaultProxy, how: Literal["reset", "black_hole"], error: type[Exception]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    proxy.drop_next_reply(b"third", how=how)
    writer.write(b"".join(command(b"ECHO", word) for word in (b"first", b"second", b"third", b"fourth")))
    assert await reader.readexactly(23) == b"$5\r\nfirst\r\n$6\r\nsecond\r\n"
    with pytest.raises(error):
        async with asyncio.timeout(0.1):
            await reader.read(1)
    writer.close()


async def test_a_reply_still_awaited_can_be_dropped(proxy: FaultProxy, client: Redis) -> None:
    before = proxy.requests
    pending = asyncio.ensure_future(client.blpop(["test:list"], 0.1))
    await until(lambda: proxy.requests > before)
    proxy.drop_next_reply(b"BLPOP")
    with pytest.raises(RedisConnectionError):
        await pending


async def test_pushed_messages_are_not_mistaken_for_replies(proxy: FaultProxy, redis: Redis, client: Redis) -> None:
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("one", "two")
        for _ in range(2):
            assert (await pubsub.get_message(timeout=5) or {})["type"] == "subscribe"
        proxy.drop_next_reply(b"PING", how="reset")
        await redis.publish("one", "hello")
        assert (await pubsub.get_message(timeout=5) or {})["data"] == b"hello"
        await pubsub.ping()
        with pytest.raises(RedisConnectionError):
            await pubsub.get_message(timeout=5)


async def test_the_confirmation_of_a_subscription_can_be_dropped(proxy: FaultProxy, client: Redis) -> None:
    proxy.drop_next_reply(b"two")
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("one")
        assert (await pubsub.get_message(timeout=5) or {})["channel"] == b"one"
        await pubsub.subscribe("two")
        with pytest.raises(RedisConnectionError):
            await pubsub.get_message(timeout=5)


@pytest.mark.smoke
async def test_an_unknown_way_to_drop_or_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="reset"):
        FaultProxy().drop_next_reply(how="gently")  # type: ignore[arg-type]  # what callers without a checker pass
    with pytest.raises(ValueError, match="replies"):
        FaultProxy().black_hole = "both"  # type: ignore[assignment]


async def test_cutting_all_resets_every_client_and_new_ones_may_come(proxy: FaultProxy) -> None:
    streams = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(3)]
    await until(lambda: proxy.connections_open == 3)
    proxy.cut_all()
    for reader, writer in streams:
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()
    assert proxy.connections_open == 0
    async with client_of(proxy) as behind:
        assert await behind.ping()


async def test_requests_held_at_a_cut_arrive_beside_those_sent_again(
    proxy: FaultProxy, client: Redis, redis: Redis
) -> None:
    proxy.hold_requests()
    before = proxy.requests
    pending = asyncio.ensure_future(client.incr("test:n"))
    await until(lambda: proxy.requests > before)
    proxy.cut_all()
    with pytest.raises(RedisConnectionError):
        await pending
    proxy.release_requests()
    await client.incr("test:n")
    async with asyncio.timeout(5):
        while await redis.get("test:n") != b"2":
            await asyncio.sleep(0.002)


async def test_refused_connections_end_at_once_and_open_ones_go_on(proxy: FaultProxy, client: Redis) -> None:
    proxy.refuse = True
    async with client_of(proxy) as other:
        with pytest.raises(RedisConnectionError):
            await other.ping()
    assert await client.ping()
    assert (proxy.connections_open, proxy.connections_total) == (1, 2)
    proxy.refuse = False
    async with client_of(proxy) as other:
        assert await other.ping()


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
