"""A lease lost after a response has begun: what a client then reads from its socket, byte by byte.

Nothing may follow what the handler itself has sent: no second response, no end of the body, no answer to a request
behind it. A client must see that the response is not complete.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any, Protocol

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from fastapi import Request, WebSocket
from fastapi.responses import JSONResponse, StreamingResponse
from redis.asyncio import Redis

import aiolocks.aiohttp
import aiolocks.fastapi
from aiolocks import Lease, LeaseLostError, Lock
from tests.support.web import (
    FOR_EVER,
    WEBSOCKET,
    WITHIN,
    aiohttp_app,
    connection,
    everything,
    fastapi_app,
    in_aiohttp,
    in_uvicorn,
    take_away,
)

pytestmark = pytest.mark.redis

LENGTH = 1000
"""What responses of a known length declare; none of them gets so far."""


class Listen(Protocol):
    """Serves an application until the test ends, and returns its port."""

    async def __call__(self, app: Any, **options: Any) -> int: ...


@pytest_asyncio.fixture
async def listen() -> AsyncIterator[Listen]:
    async with AsyncExitStack() as stack:

        async def start(app: Any, **options: Any) -> int:
            run = in_aiohttp(app, **options) if isinstance(app, web.Application) else in_uvicorn(app)
            return await stack.enter_async_context(run)

        yield start


class Export(Protocol):
    """Serves ``GET /export``, which streams one line and then loses its lease, on one of the two frameworks."""

    async def __call__(self, redis: Redis, length: int | None) -> int: ...


@pytest.fixture(params=["fastapi", "aiohttp", "fastapi-middleware", "aiohttp-middleware"])
def export(request: pytest.FixtureRequest, listen: Listen) -> Export:
    framework, _, middleware = request.param.partition("-")

    async def on_fastapi(redis: Redis, length: int | None) -> int:
        app = fastapi_app(redis)
        headers = {} if length is None else {"Content-Length": str(length)}

        @app.get("/export")
        async def endpoint(
            lease: Annotated[Lease, aiolocks.fastapi.locked("export", scope="request")],
        ) -> StreamingResponse:
            return StreamingResponse(first_and_no_more(redis), headers=headers)

        if middleware:

            @app.middleware("http")
            async def pass_on(request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
                try:
                    return await call_next(request)
                except Exception:
                    return JSONResponse("an error", 500)

            app.exception_handler(Exception)(lambda request, error: JSONResponse("an error", 500))

        return await listen(app)

    async def on_aiohttp(redis: Redis, length: int | None) -> int:
        @web.middleware
        async def explain(request: web.Request, handler: Any) -> web.StreamResponse:
            try:
                answer: web.StreamResponse = await handler(request)
                return answer
            except Exception:
                return web.json_response("an error", status=500)

        @aiolocks.aiohttp.locked("export")
        async def handler(request: web.Request, lease: Lease) -> web.StreamResponse:
            response = web.StreamResponse()
            response.content_length = length
            await response.prepare(request)
            async for line in first_and_no_more(redis):
                await response.write(line)
            return response

        middlewares = [explain] if middleware else []
        return await listen(aiohttp_app(redis, web.get("/export", handler), middlewares=middlewares))

    return on_fastapi if framework == "fastapi" else on_aiohttp


async def first_and_no_more(redis: Redis) -> AsyncIterator[bytes]:
    yield b"first\n"
    await take_away(redis)
    await asyncio.sleep(FOR_EVER)
    yield b"last\n"


@pytest.mark.asyncio
async def test_a_loss_leaves_a_body_of_known_length_too_short(export: Export, redis: Redis) -> None:
    head, body = await everything(await export(redis, LENGTH), "GET /export HTTP/1.1")
    assert head.startswith("HTTP/1.1 200")
    assert f"content-length: {LENGTH}" in head.lower()
    assert body == b"first\n"


@pytest.mark.asyncio
async def test_a_loss_leaves_a_chunked_body_without_its_end(export: Export, redis: Redis) -> None:
    head, body = await everything(await export(redis, None), "GET /export HTTP/1.1")
    assert head.startswith("HTTP/1.1 200")
    assert "transfer-encoding: chunked" in head.lower()
    assert body == b"6\r\nfirst\n\r\n"


@pytest.mark.asyncio
async def test_after_a_loss_a_request_behind_it_on_the_connection_is_not_answered(export: Export, redis: Redis) -> None:
    port = await export(redis, None)
    behind = ("Host: shop", "", "GET /export HTTP/1.1")
    _, body = await everything(port, "GET /export HTTP/1.1", "Connection: keep-alive", *behind)
    assert body == b"6\r\nfirst\n\r\n"


@pytest.mark.asyncio
async def test_a_stream_that_was_cut_off_has_freed_its_lock(export: Export, redis: Redis) -> None:
    await everything(await export(redis, None), "GET /export HTTP/1.1")
    async with Lock(redis, "export").hold(timeout=WITHIN):
        pass


# aiohttp.


@pytest.mark.asyncio
async def test_aiohttp_a_loss_behind_the_headers_alone_cuts_off_too(listen: Listen, redis: Redis) -> None:
    @aiolocks.aiohttp.locked("export")
    async def handler(request: web.Request, lease: Lease) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await take_away(redis)
        await asyncio.sleep(FOR_EVER)
        return response

    head, body = await everything(await listen(aiohttp_app(redis, web.get("/export", handler))), "GET /export HTTP/1.1")
    assert (head[:12], body) == ("HTTP/1.1 200", b"")


@pytest.mark.asyncio
async def test_aiohttp_a_stream_that_ended_before_the_loss_was_known_lacks_its_end(
    listen: Listen, redis: Redis
) -> None:
    @aiolocks.aiohttp.locked("export")
    async def handler(request: web.Request, lease: Lease) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"all\n")
        await take_away(redis)
        return response

    _, body = await everything(await listen(aiohttp_app(redis, web.get("/export", handler))), "GET /export HTTP/1.1")
    assert body == b"4\r\nall\n\r\n"


@pytest.mark.asyncio
async def test_aiohttp_what_leaves_a_handler_that_has_begun_is_the_loss_itself(listen: Listen, redis: Redis) -> None:
    left: list[BaseException] = []

    @aiolocks.aiohttp.locked("export")
    async def stream(request: web.Request, lease: Lease) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await take_away(redis)
        await asyncio.sleep(FOR_EVER)
        return response

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return await stream(request)
        except Exception as error:
            left.append(error)
            raise

    await everything(await listen(aiohttp_app(redis, web.get("/export", handler))), "GET /export HTTP/1.1")
    assert [type(error) for error in left] == [LeaseLostError]


def frames(sent: bytes) -> list[tuple[int, bytes]]:
    """Return the opcode and payload of each frame of a server; all of them are short."""
    found = []
    while sent:
        length = sent[1]
        assert length < 126
        found.append((sent[0] & 0x0F, sent[2 : 2 + length]))
        sent = sent[2 + length :]
    return found


TEXT, CLOSE = 1, 8
SERVICE_RESTART = (1012).to_bytes(2, "big")


class Feed(Protocol):
    """Serves a WebSocket at ``/feed``, which accepts, sends one text, and does *work*, on one of the two frameworks."""

    async def __call__(self, redis: Redis, work: Callable[[Lease], Awaitable[object]], **options: Any) -> int: ...


@pytest.fixture(params=["fastapi", "aiohttp"])
def feed(request: pytest.FixtureRequest, listen: Listen) -> Feed:
    async def on_fastapi(redis: Redis, work: Callable[[Lease], Awaitable[object]], **options: Any) -> int:
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

    async def on_aiohttp(redis: Redis, work: Callable[[Lease], Awaitable[object]], **options: Any) -> int:
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


@pytest.mark.asyncio
async def test_a_loss_closes_a_websocket_with_1012_and_sends_nothing_else(feed: Feed, redis: Redis) -> None:
    async def work(lease: Lease) -> None:
        await take_away(redis)
        await asyncio.sleep(FOR_EVER)

    async with connection(await feed(redis, work)) as (reader, writer):
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


@pytest.mark.asyncio
async def test_a_websocket_client_is_told_1012(feed: Feed, redis: Redis) -> None:
    async def work(lease: Lease) -> None:
        await take_away(redis)
        await asyncio.sleep(FOR_EVER)

    port = await feed(redis, work)
    async with aiohttp.ClientSession() as client:
        async with client.ws_connect(f"http://127.0.0.1:{port}/feed") as socket:
            assert await socket.receive_str(timeout=WITHIN) == "first"
            assert (await socket.receive(timeout=WITHIN)).type == aiohttp.WSMsgType.CLOSE
            assert socket.close_code == 1012


@pytest.mark.asyncio
async def test_a_websocket_that_is_busy_is_refused_before_it_is_accepted(feed: Feed, redis: Redis) -> None:
    async def work(lease: Lease) -> None: ...

    port = await feed(redis, work, status=409)
    async with aiohttp.ClientSession() as client:
        async with Lock(redis, "feed"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await client.ws_connect(f"http://127.0.0.1:{port}/feed")
        assert refused.value.status == 409
        assert refused.value.headers is not None
        assert refused.value.headers["Retry-After"] == "1"
        async with client.ws_connect(f"http://127.0.0.1:{port}/feed") as socket:
            assert await socket.receive_str(timeout=WITHIN) == "first"
    async with Lock(redis, "feed").hold(timeout=WITHIN):
        pass
