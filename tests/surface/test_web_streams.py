"""A lease lost after a response has begun: nothing follows what the handler has sent, byte by byte; and WebSockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from fastapi import Depends, HTTPException, WebSocket, WebSocketException
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from redis.asyncio import Redis

import aiolocks.aiohttp
import aiolocks.fastapi
from aiolocks import Lease, LeaseLostError, Lock
from tests.support.network import until
from tests.support.web import (
    FOR_EVER,
    WEBSOCKET,
    WITHIN,
    Listen,
    aiohttp_app,
    connection,
    everything,
    fastapi_app,
    listening,
    take_away,
)
from tests.surface.test_web import Work, lose, nothing, pass_on

pytestmark = [pytest.mark.redis, pytest.mark.rest, pytest.mark.asyncio]

Export = Callable[..., Awaitable[int]]
"""Serves ``GET /export``, which streams one line and then loses its lease, on one of the two frameworks."""

LENGTH = 1000
"""What responses of a known length declare; none of them gets so far."""


@pytest_asyncio.fixture
async def listen() -> AsyncIterator[Listen]:
    async with listening() as start:
        yield start


@pytest.fixture(params=["fastapi", "aiohttp", "fastapi-middleware", "aiohttp-middleware", "hypercorn", "granian"])
def export(request: pytest.FixtureRequest, listen: Listen) -> Export:
    framework, _, middleware = request.param.partition("-")
    server = framework if framework in {"hypercorn", "granian"} else "uvicorn"

    async def on_fastapi(redis: Redis, length: int | None) -> int:
        app = fastapi_app(redis)
        headers = {} if length is None else {"Content-Length": str(length)}

        async def lines() -> AsyncIterator[bytes]:
            yield b"first\n"
            await lose(redis)
            yield b"last\n"

        @app.get("/export")
        async def endpoint(
            lease: Annotated[Lease, aiolocks.fastapi.locked("export", scope="request")],
        ) -> StreamingResponse:
            return StreamingResponse(lines(), headers=headers)

        if middleware == "function":
            app.middleware("http")(pass_on)
        elif middleware:  # and handlers of errors, which would answer what has been answered
            for error in (Exception, ValueError, HTTPException, LeaseLostError):
                app.exception_handler(error)(lambda request, error: JSONResponse("an error", 500))
            app.add_middleware(GZipMiddleware, minimum_size=10 * LENGTH)

        return await listen(app, server=server)

    async def on_aiohttp(redis: Redis, length: int | None) -> int:
        @web.middleware
        async def explain(request: web.Request, handler: Any) -> Any:
            try:
                return await handler(request)
            except Exception:
                return web.json_response("an error", status=500)

        route = web.get("/export", streaming(redis, b"first\n", length=length))
        return await listen(aiohttp_app(redis, route, middlewares=[explain] if middleware else []))

    return on_aiohttp if framework == "aiohttp" else on_fastapi


def streaming(
    redis: Redis, *lines: bytes, then: Callable[[Redis], Awaitable[None]] = lose, length: int | None = None,
    response: web.StreamResponse | None = None, begins: bool = True,
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:  # fmt: skip
    """Return a handler for aiohttp that streams *lines* under the lock "export", and then loses its lease."""
    headers = {} if length is None else {"Content-Length": str(length)}

    @aiolocks.aiohttp.locked("export")
    async def handler(request: web.Request, lease: Lease) -> web.StreamResponse:
        answer = web.StreamResponse(headers=headers) if response is None else response
        if begins:
            await answer.prepare(request)
        for line in lines:
            await answer.write(line)
        await then(redis)
        return answer

    return handler


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("length", "header", "sent"),
    [(LENGTH, f"content-length: {LENGTH}", b"first\n"), (None, "transfer-encoding: chunked", b"6\r\nfirst\n\r\n")],
    ids=["known length", "chunked"],
)
async def test_a_loss_leaves_a_body_without_its_end_answers_nothing_behind_it_and_frees_the_lock(
    export: Export, redis: Redis, length: int | None, header: str, sent: bytes
) -> None:
    behind = ("Host: shop", "", "GET /export HTTP/1.1")
    port = await export(redis, length)
    head, body = await everything(port, "GET /export HTTP/1.1", "Connection: keep-alive", *behind)
    assert head.startswith("HTTP/1.1 200")
    assert header in head.lower()
    assert body == sent
    async with Lock(redis, "export").hold(timeout=WITHIN):
        pass


@pytest.mark.parametrize("export", ["fastapi-function"], indirect=True)
async def test_fastapi_a_middleware_around_leaves_a_body_too_short(export: Export, redis: Redis) -> None:
    _, body = await everything(await export(redis, LENGTH), "GET /export HTTP/1.1")
    assert body == b"first\n"


async def test_aiohttp_a_stream_that_ended_before_its_loss_lacks_its_end(listen: Listen, redis: Redis) -> None:
    route = web.get("/export", streaming(redis, b"all\n", then=take_away))
    _, body = await everything(await listen(aiohttp_app(redis, route)), "GET /export HTTP/1.1")
    assert body == b"4\r\nall\n\r\n"


async def test_aiohttp_a_loss_behind_the_headers_alone_cuts_off_and_is_raised(listen: Listen, redis: Redis) -> None:
    left: list[BaseException] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return await streaming(redis)(request)
        except Exception as error:
            left.append(error)
            raise

    head, body = await everything(await listen(aiohttp_app(redis, web.get("/export", handler))), "GET /export HTTP/1.1")
    assert (head[:12], body) == ("HTTP/1.1 200", b"")
    assert [type(error) for error in left] == [LeaseLostError]


async def test_aiohttp_what_was_prepared_but_not_sent_spoils_no_answer(listen: Listen, redis: Redis) -> None:
    response = web.Response(text="all")
    response.enable_chunked_encoding()
    port = await listen(aiohttp_app(redis, web.get("/export", streaming(redis, response=response))))
    head, body = await everything(port, "GET /export HTTP/1.1")
    assert (head[:12], body) in [("", b""), ("HTTP/1.1 200", b"")]


async def test_aiohttp_a_client_told_to_continue_is_answered_with_503(listen: Listen, redis: Redis) -> None:
    port = await listen(aiohttp_app(redis, web.post("/export", streaming(redis, begins=False))))
    lines = ("POST /export HTTP/1.1", "Expect: 100-continue", "Content-Length: 0", "Connection: close")
    head, rest = await everything(port, *lines)
    assert head == "HTTP/1.1 100 Continue"
    assert rest.startswith(b"HTTP/1.1 503 ")


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
        async def serve(socket: WebSocket, lease: Annotated[Lease, aiolocks.fastapi.locked("feed", **options)]) -> None:
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


@pytest.mark.parametrize(("feed", "answer"), [
    ("fastapi", None), ("fastapi", WebSocketException(1000)), ("fastapi", HTTPException(200)),
    ("aiohttp", None), ("aiohttp", web.HTTPOk()),
], indirect=["feed"])  # fmt: skip
async def test_a_loss_closes_a_websocket_with_1012_and_sends_nothing_else(
    feed: Feed, redis: Redis, answer: Exception | None
) -> None:
    async def work(lease: Lease) -> None:
        try:
            await lose(redis)
        except asyncio.CancelledError as cancelled:
            raise (answer or cancelled) from None

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

    route = web.get("/feed", streaming(redis, response=web.WebSocketResponse(), begins=False))
    for port in (await listen(app), await listen(aiohttp_app(redis, route))):
        assert await refusal(port, "/feed") == 503


async def refusal(port: int, path: str) -> int:
    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.ws_connect(f"http://127.0.0.1:{port}{path}")
    return refused.value.status


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
        assert await refusal(port, "/feed/007") == 403
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
    app, left = fastapi_app(redis), list[BaseException]()

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
    await until(lambda: bool(left))
    assert [type(error) for error in left] == [LeaseLostError]


async def test_a_lock_that_outlives_its_max_hold_ends_its_websocket(feed: Feed, redis: Redis) -> None:
    port = await feed(redis, lambda lease: asyncio.sleep(FOR_EVER), ttl=0.3, max_hold=0.1)
    async with aiohttp.ClientSession() as client, client.ws_connect(f"http://127.0.0.1:{port}/feed") as socket:
        assert await socket.receive_str(timeout=WITHIN) == "first"
        assert (await socket.receive(timeout=WITHIN)).data == 1012


async def test_aiohttp_a_stream_that_answers_an_upgrade_gets_no_frame(listen: Listen, redis: Redis) -> None:
    route = web.get("/feed", streaming(redis, b"first\n"))
    _, body = await everything(await listen(aiohttp_app(redis, route)), "GET /feed HTTP/1.1", *WEBSOCKET)
    assert body == b"6\r\nfirst\n\r\n"
