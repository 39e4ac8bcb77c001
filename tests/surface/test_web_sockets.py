"""Locks around WebSockets, on real servers: refused before they are accepted, closed with 1012 on a loss."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from fastapi import Depends, WebSocket
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

import aiolocks.aiohttp
import aiolocks.fastapi
from aiolocks import Lease, LeaseLostError, Lock
from tests.support.servers import RedisServer
from tests.support.web import (
    WEBSOCKET,
    WITHIN,
    Listen,
    aiohttp_app,
    connection,
    fastapi_app,
    listening,
    take_away,
)
from tests.surface.test_web import Work, lose, nothing

pytestmark = [pytest.mark.redis, pytest.mark.rest, pytest.mark.asyncio]


@pytest_asyncio.fixture
async def listen() -> AsyncIterator[Listen]:
    async with listening() as start:
        yield start


def frames(sent: bytes) -> list[tuple[int, bytes]]:
    """Return the opcode and payload of each frame of a server; all of them are short."""
    found = []
    while sent:
        length = sent[1]
        assert length < 126
        found.append((sent[0] & 0x0F, sent[2 : 2 + length]))
        sent = sent[2 + length :]
    return found


Feed = Callable[..., Awaitable[int]]
"""Serves a WebSocket at ``/feed``, which accepts, sends one text, and does *work*, on one of the two frameworks."""

TEXT, CLOSE = 1, 8
SERVICE_RESTART = (1012).to_bytes(2, "big")


@pytest.fixture(params=["fastapi", "aiohttp"])
def feed(request: pytest.FixtureRequest, listen: Listen) -> Feed:
    async def on_fastapi(redis: Redis, work: Work, **options: Any) -> int:
        app = fastapi_app(redis)

        @app.websocket("/feed")
        async def endpoint(
            socket: WebSocket, lease: Annotated[Lease, aiolocks.fastapi.locked("feed", **options)]
        ) -> None:
            await socket.accept()
            await socket.send_text("first")
            await work(lease)
            await socket.close()

        return await listen(app)

    async def on_aiohttp(redis: Redis, work: Work, **options: Any) -> int:
        @aiolocks.aiohttp.locked("feed", **options)
        async def handler(request: web.Request, lease: Lease) -> web.WebSocketResponse:
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.send_str("first")
            await work(lease)
            await socket.close()
            return socket

        return await listen(aiohttp_app(redis, web.get("/feed", handler)))

    return on_fastapi if request.param == "fastapi" else on_aiohttp


async def test_a_loss_closes_a_websocket_with_1012_and_sends_nothing_else(feed: Feed, redis: Redis) -> None:
    async with connection(await feed(redis, lambda lease: lose(redis))) as (reader, writer):
        writer.write("\r\n".join(["GET /feed HTTP/1.1", "Host: shop", *WEBSOCKET, "", ""]).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        sent = b""
        while len(frames(sent)) < 2 and (more := await reader.read(1000)):
            sent += more
        writer.write(b"\x88\x82\0\0\0\0" + SERVICE_RESTART)  # as a client answers a close
        sent += await reader.read(-1)
    assert head.startswith(b"HTTP/1.1 101")
    (text, words), (close, why) = frames(sent)
    assert (text, words) == (TEXT, b"first")
    assert (close, why[:2]) == (CLOSE, SERVICE_RESTART)


@pytest.mark.smoke
async def test_a_websocket_that_is_busy_is_refused_before_it_is_accepted(feed: Feed, redis: Redis) -> None:
    port = await feed(redis, nothing, status=409)
    async with aiohttp.ClientSession() as client:
        async with Lock(redis, "feed"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await client.ws_connect(f"http://127.0.0.1:{port}/feed")
        assert refused.value.status == 409
        assert refused.value.headers is not None
        assert refused.value.headers["Retry-After"] in ("29", "30")
        async with client.ws_connect(f"http://127.0.0.1:{port}/feed") as socket:
            assert await socket.receive_str(timeout=WITHIN) == "first"
    async with Lock(redis, "feed").hold(timeout=WITHIN):
        pass


async def test_a_websocket_whose_lease_is_lost_before_it_is_open_is_refused(listen: Listen, redis: Redis) -> None:
    app = fastapi_app(redis)

    @app.websocket("/feed")
    async def endpoint(socket: WebSocket, lease: Annotated[Lease, aiolocks.fastapi.locked("feed")]) -> None:
        await lose(redis)

    @aiolocks.aiohttp.locked("feed")
    async def handler(request: web.Request, lease: Lease) -> web.WebSocketResponse:
        await lose(redis)
        return web.WebSocketResponse()

    for port in (await listen(app), await listen(aiohttp_app(redis, web.get("/feed", handler)))):
        assert await refusal(port, "/feed") == 503


async def refusal(port: int, path: str) -> int:
    """Return the status with which a server refuses a WebSocket."""
    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect(f"http://127.0.0.1:{port}{path}")
    return refused.value.status


async def test_without_redis_a_websocket_is_refused_with_503(feed: Feed, own_server: RedisServer) -> None:
    async with Redis.from_url(own_server.url, retry=Retry(NoBackoff(), 0)) as redis:
        port = await feed(redis, nothing)
        own_server.kill()
        assert await refusal(port, "/feed") == 503


async def test_a_client_that_leaves_frees_the_lock_of_its_websocket(feed: Feed, redis: Redis) -> None:
    gone = asyncio.Event()
    port = await feed(redis, lambda lease: gone.wait())
    async with aiohttp.ClientSession() as client:
        async with client.ws_connect(f"http://127.0.0.1:{port}/feed") as socket:
            assert await socket.receive_str(timeout=WITHIN) == "first"
    gone.set()
    async with Lock(redis, "feed").hold(timeout=WITHIN):
        pass


# FastAPI.


async def test_fastapi_where_the_server_knows_no_other_refusal_it_is_403(listen: Listen, redis: Redis) -> None:
    app = fastapi_app(redis)

    @app.websocket("/feed/{number}")
    async def endpoint(
        socket: WebSocket, number: int, lease: Annotated[Lease, aiolocks.fastapi.locked("feed:{number}", detail="busy")]
    ) -> None:
        await socket.accept()

    async def old_server(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "extensions": {}}, receive, send)

    port = await listen(old_server)
    async with Lock(redis, "feed:7"):
        assert await refusal(port, "/feed/7") == 403
        assert await refusal(port, "/feed/seven") == 403
    async with aiohttp.ClientSession() as client, client.ws_connect(f"http://127.0.0.1:{port}/feed/007"):
        pass


async def test_fastapi_a_busy_websocket_that_is_open_is_closed_with_1013(listen: Listen, redis: Redis) -> None:
    app = fastapi_app(redis)

    async def accept(socket: WebSocket) -> None:
        await socket.accept()

    @app.websocket("/feed", dependencies=[Depends(accept), aiolocks.fastapi.locked("feed", detail="é" * 100)])
    async def endpoint(socket: WebSocket) -> None: ...

    port = await listen(app)
    async with Lock(redis, "feed"), aiohttp.ClientSession() as client:
        async with client.ws_connect(f"http://127.0.0.1:{port}/feed") as socket:
            message = await socket.receive(timeout=WITHIN)
            assert (message.type, message.data, message.extra) == (aiohttp.WSMsgType.CLOSE, 1013, "é" * 61)


async def test_fastapi_a_loss_behind_the_end_of_a_websocket_is_for_the_program(listen: Listen, redis: Redis) -> None:
    app = fastapi_app(redis)
    left: list[BaseException] = []

    async def watch() -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            left.append(error)
            raise

    @app.websocket("/feed", dependencies=[Depends(watch)])
    async def endpoint(socket: WebSocket, lease: Annotated[Lease, aiolocks.fastapi.locked("feed")]) -> None:
        await socket.accept()
        await socket.close(1000)
        await take_away(redis)

    port = await listen(app)
    async with aiohttp.ClientSession() as client, client.ws_connect(f"http://127.0.0.1:{port}/feed") as socket:
        assert (await socket.receive(timeout=WITHIN)).data == 1000
    async with asyncio.timeout(WITHIN):
        while not left:
            await asyncio.sleep(0.01)
    assert [type(error) for error in left] == [LeaseLostError]


async def test_fastapi_a_lock_that_outlives_its_max_hold_ends_its_websocket(listen: Listen, redis: Redis) -> None:
    app = fastapi_app(redis)

    @app.websocket("/feed")
    async def endpoint(
        socket: WebSocket, lease: Annotated[Lease, aiolocks.fastapi.locked("feed", ttl=0.3, max_hold=0.1)]
    ) -> None:
        await socket.accept()
        await socket.receive_text()

    port = await listen(app)
    async with aiohttp.ClientSession() as client, client.ws_connect(f"http://127.0.0.1:{port}/feed") as socket:
        assert (await socket.receive(timeout=WITHIN)).data == 1012


# aiohttp.


async def test_aiohttp_a_stream_that_answers_an_upgrade_gets_no_frame(listen: Listen, redis: Redis) -> None:
    @aiolocks.aiohttp.locked("feed")
    async def handler(request: web.Request, lease: Lease) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first\n")
        await lose(redis)
        return response

    async with connection(await listen(aiohttp_app(redis, web.get("/feed", handler)))) as (reader, writer):
        writer.write("\r\n".join(["GET /feed HTTP/1.1", "Host: shop", *WEBSOCKET, "", ""]).encode())
        _, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    assert body == b"6\r\nfirst\n\r\n"
