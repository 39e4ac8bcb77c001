"""The fault proxy in front of a real server: what passes, waits, is swallowed, lost, cut or refused; and its end."""

import asyncio
import math
import socket
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Literal, cast

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks.testing import FaultProxy
from tests.support.lateness import SLACK, in_time
from tests.support.network import client_of, command, until, until_exists
from tests.support.servers import RedisServer

pytestmark = pytest.mark.rest


@pytest_asyncio.fixture(params=[2, 3], ids=["resp2", "resp3"])
async def client(proxy: FaultProxy, request: pytest.FixtureRequest) -> AsyncIterator[Redis]:
    """A client behind the proxy, with one connection that is open already."""
    async with client_of(proxy, protocol=request.param, max_connections=1) as behind:
        await behind.ping()
        yield behind


async def until_is(redis: Redis, key: str, value: bytes) -> None:
    async with asyncio.timeout(5):
        while await redis.get(key) != value:
            await asyncio.sleep(0.002)


@pytest.mark.smoke
async def test_commands_pass_unchanged(client: Redis) -> None:
    value = bytes(range(256)) * 5000
    await client.set("test:big", value)
    assert await client.get("test:big") == value
    async with client.pipeline() as pipeline:
        for number in range(500):
            _ = pipeline.set("test:n", number), pipeline.get("test:n")
            _ = pipeline.hgetall("test:absent"), pipeline.lrange("test:absent", 0, 1)
        replies = await pipeline.execute()
    assert len(replies) == 4 * 500
    assert replies[1::4] == [b"%d" % number for number in range(500)]


async def test_the_observer_sees_each_request_and_may_decide_its_fate(proxy: FaultProxy, client: Redis) -> None:
    seen: list[bytes] = []

    def swallow_sets(request: bytes) -> None:
        seen.append(request)
        proxy.black_hole = b"SET" in request

    proxy.on_request = swallow_sets
    await client.get("test:a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.set("test:a", 1)
    assert seen == [command(b"GET", b"test:a"), command(b"SET", b"test:a", b"1")]
    proxy.black_hole = False


async def test_a_request_without_delay_does_not_pass_a_delayed_one(proxy: FaultProxy, redis: Redis) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    proxy.delay_requests = 0.1
    writer.write(command(b"APPEND", b"test:order", b"1"))
    await until(lambda: proxy.requests == 1)
    proxy.delay_requests = 0
    writer.write(command(b"APPEND", b"test:order", b"2"))
    assert await reader.readexactly(8) == b":1\r\n:2\r\n"
    assert await redis.get("test:order") == b"12"
    writer.close()
    await writer.wait_closed()


@pytest.mark.rest
@pytest.mark.smoke
async def test_delayed_replies_come_late_though_all_is_done(proxy: FaultProxy, client: Redis, redis: Redis) -> None:
    proxy.delay_replies = 0.2
    started = time.monotonic()
    pending = asyncio.ensure_future(client.set("test:a", 1))
    await until_exists(redis, "test:a")
    assert not pending.done()
    assert await pending
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize("how", ["at once", "delayed", "held"])
async def test_requests_arrive_in_order_though_their_client_is_gone(proxy: FaultProxy, redis: Redis, how: str) -> None:
    if how == "delayed":
        proxy.delay_requests = 0.5
    elif how == "held":
        proxy.hold_requests()
    with socket.create_connection(("127.0.0.1", proxy.port)) as gone:
        gone.sendall(command(b"SET", b"test:late", b"1") + command(b"APPEND", b"test:late", b"2"))
        if how != "at once":
            await until(lambda: proxy.requests == 2)
    if how != "at once":
        await until(lambda: proxy.connections_open == 0)
        assert not await redis.exists("test:late")
        proxy.release_requests()
    await until_is(redis, "test:late", b"12")


async def test_a_connection_that_lost_bytes_carries_nothing_any_more(proxy: FaultProxy, redis: Redis) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    proxy.black_hole = True
    writer.write(command(b"SET", b"test:lost", b"1"))
    await until(lambda: proxy.requests == 1)
    proxy.black_hole = False
    writer.write(command(b"SET", b"test:after", b"1"))
    await until(lambda: proxy.requests == 2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.read(1)
    assert await redis.exists("test:lost", "test:after") == 0
    assert proxy.connections_open == 1
    writer.close()
    await writer.wait_closed()


async def test_a_connection_that_was_silent_in_a_black_hole_goes_on(proxy: FaultProxy, client: Redis) -> None:
    proxy.black_hole = True
    await asyncio.sleep(0.02)
    proxy.black_hole = False
    await client.ping()
    assert proxy.connections_total == 1


async def test_a_black_hole_hides_a_close_until_it_heals(proxy: FaultProxy, redis: Redis) -> None:
    async with client_of(proxy, client_name="half-open") as behind:
        await behind.ping()
        proxy.black_hole = True
    await until(lambda: proxy.connections_open == 0)

    async def names() -> list[str]:
        return [client["name"] for client in await redis.client_list()]

    assert "half-open" in await names()
    proxy.black_hole = False
    async with asyncio.timeout(5):
        while "half-open" in await names():
            await asyncio.sleep(0.002)


async def test_a_paused_server_looks_paused_and_leaving_does_not_wait_for_it(own_server: RedisServer) -> None:
    own_server.pause()
    async with in_time(0.1 + SLACK * 0.3):
        async with FaultProxy(path=own_server.socket_path) as proxy, client_of(proxy, socket_timeout=0.1) as behind:
            with pytest.raises(RedisTimeoutError):
                await behind.ping()
    own_server.resume()


async def test_leaving_the_block_closes_everything_whatever_was_under_way(server: RedisServer) -> None:
    tasks = asyncio.all_tasks()
    async with FaultProxy(path=server.socket_path) as proxy:
        streams = [await asyncio.open_connection("127.0.0.1", proxy.port) for _ in range(3)]
        proxy.delay_requests = proxy.delay_replies = 3600
        streams[0][1].write(command(b"PING"))
        await until(lambda: proxy.requests == 1)
        proxy.hold_requests()
        streams[1][1].write(command(b"PING"))
        await until(lambda: proxy.requests == 2)
        proxy.black_hole = True
        port = proxy.port
        late = socket.create_connection(("127.0.0.1", port))
    assert proxy.connections_open == 0
    assert asyncio.all_tasks() == tasks
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    late.close()
    for reader, writer in streams:
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()


async def test_a_delay_may_be_a_timedelta(proxy: FaultProxy, client: Redis) -> None:
    proxy.delay_requests = proxy.delay_replies = timedelta(milliseconds=50)
    assert (proxy.delay_requests, proxy.delay_replies) == (0.05, 0.05)
    begun = time.monotonic()
    await client.ping()
    assert time.monotonic() - begun >= 0.1
    for wrong in (cast("float", "1"), True, math.nan, math.inf):
        with pytest.raises((TypeError, ValueError), match="delay"):
            proxy.delay_replies = wrong
        with pytest.raises((TypeError, ValueError), match="delay"):
            proxy.delay_next_reply(wrong)


@pytest.mark.smoke
@pytest.mark.parametrize("way", ["request", "reply"])
async def test_only_the_next_message_with_these_bytes_is_dropped_and_resets_the_connection(
    proxy: FaultProxy, client: Redis, redis: Redis, way: str
) -> None:
    drop = proxy.drop_next_request if way == "request" else proxy.drop_next_reply
    drop(b"test:a")
    await client.set("test:b", 1)
    with pytest.raises(RedisConnectionError):
        await client.set("test:a", 1)
    assert await redis.exists("test:a") == (way == "reply")
    assert await client.set("test:a", 2)
    assert await redis.exists("test:a", "test:b") == 2


@pytest.mark.parametrize(("way", "how"), [("reply", "reset"), ("reply", "black_hole"), ("request", "black_hole")])
async def test_in_a_pipeline_what_is_before_the_dropped_one_arrives_and_no_later_reply(
    proxy: FaultProxy, redis: Redis, way: str, how: Literal["reset", "black_hole"]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    drop = proxy.drop_next_request if way == "request" else proxy.drop_next_reply
    drop(b"test:c", how=how)
    keys = (b"test:a", b"test:b", b"test:c", b"test:d")
    writer.write(b"".join(command(b"SET", key, b"") for key in keys))
    assert await reader.readexactly(10) == b"+OK\r\n+OK\r\n"
    with pytest.raises(ConnectionResetError if how == "reset" else TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.read(1)
    assert await redis.exists(*keys) == (2 if way == "request" else 4)
    writer.close()


async def test_a_reply_still_awaited_can_be_dropped(proxy: FaultProxy, client: Redis) -> None:
    before = proxy.requests
    pending = asyncio.ensure_future(client.blpop(["test:list"], 0.1))
    await until(lambda: proxy.requests > before)
    proxy.drop_next_reply(b"BLPOP")
    with pytest.raises(RedisConnectionError):
        await pending


async def test_the_confirmation_of_a_subscription_can_be_dropped_and_no_message_is_mistaken_for_a_reply(
    proxy: FaultProxy, redis: Redis, client: Redis
) -> None:
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("one", "two")
        for channel in (b"one", b"two"):
            assert (await pubsub.get_message(timeout=5) or {})["channel"] == channel
        proxy.drop_next_reply(b"PING", how="reset")
        await redis.publish("one", "hello")
        assert (await pubsub.get_message(timeout=5) or {})["data"] == b"hello"
        await pubsub.ping()
        with pytest.raises(RedisConnectionError):
            await pubsub.get_message(timeout=5)
        proxy.drop_next_reply(b"three")
        await pubsub.subscribe("three")
        with pytest.raises(RedisConnectionError):
            while (await pubsub.get_message(timeout=5) or {})["channel"] != b"three":
                pass


@pytest.mark.smoke
async def test_an_unknown_way_to_drop_or_direction_is_refused_and_outside_its_block_a_proxy_has_no_port() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        FaultProxy().url  # noqa: B018  # a property that raises
    with pytest.raises(ValueError, match="reset"):
        FaultProxy().drop_next_reply(how="gently")  # type: ignore[arg-type]  # what callers without a checker pass
    with pytest.raises(ValueError, match="replies"):
        FaultProxy().black_hole = "both"  # type: ignore[assignment]


async def test_requests_held_at_a_cut_come_beside_their_repeats(proxy: FaultProxy, client: Redis, redis: Redis) -> None:
    proxy.hold_requests()
    before = proxy.requests
    pending = asyncio.ensure_future(client.incr("test:n"))
    await until(lambda: proxy.requests > before)
    proxy.cut_all()
    with pytest.raises(RedisConnectionError):
        await pending
    proxy.release_requests()
    await client.incr("test:n")
    await until_is(redis, "test:n", b"2")


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


async def test_a_black_hole_for_replies_swallows_those_on_their_way_alone(proxy: FaultProxy, redis: Redis) -> None:
    async with client_of(proxy) as client:
        await asyncio.gather(client.ping(), client.ping())  # two connections
        proxy.delay_replies = 0.1
        pending = asyncio.ensure_future(client.set("test:a", 1))
        await until_exists(redis, "test:a")
        proxy.black_hole = "replies"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await asyncio.gather(pending, client.set("test:b", 1))
        await until_exists(redis, "test:b")
        proxy.black_hole = False


@pytest.mark.parametrize("way", ["request", "reply"])
async def test_one_message_can_be_late_and_others_are_not(proxy: FaultProxy, way: str) -> None:
    async with client_of(proxy) as client:
        await client.ping()
        order = proxy.delay_next_request if way == "request" else proxy.delay_next_reply
        order(timedelta(milliseconds=200), b"SET")
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
