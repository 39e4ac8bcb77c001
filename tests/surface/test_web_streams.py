"""A lease lost after a response has begun: what a client then reads from its socket, byte by byte.

Nothing may follow what the handler itself has sent: no second response, no end of the body, no answer to a request
behind it. A client must see that the response is not complete.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import pytest
import pytest_asyncio
from aiohttp import web
from fastapi import HTTPException, Request
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from redis.asyncio import Redis

import aiolocks.aiohttp
import aiolocks.fastapi
from aiolocks import Lease, LeaseLostError, Lock
from tests.support.web import WITHIN, Listen, aiohttp_app, everything, fastapi_app, listening, take_away
from tests.surface.test_web import lose

pytestmark = [pytest.mark.redis, pytest.mark.rest, pytest.mark.asyncio]

Export = Callable[..., Awaitable[int]]
"""Serves ``GET /export``, which streams one line and then loses its lease, on one of the two frameworks."""

LENGTH = 1000
"""What responses of a known length declare; none of them gets so far."""


@pytest_asyncio.fixture
async def listen() -> AsyncIterator[Listen]:
    async with listening() as start:
        yield start


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

        if middleware:  # and handlers of errors, which would answer what has been answered
            for error in (Exception, ValueError, HTTPException, LeaseLostError):
                app.exception_handler(error)(lambda request, error: JSONResponse("an error", 500))
            app.add_middleware(GZipMiddleware, minimum_size=10 * LENGTH)

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
    await lose(redis)
    yield b"last\n"


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("length", "header", "sent"),
    [(LENGTH, f"content-length: {LENGTH}", b"first\n"), (None, "transfer-encoding: chunked", b"6\r\nfirst\n\r\n")],
    ids=["known length", "chunked"],
)
async def test_a_loss_leaves_a_body_without_its_end_and_frees_the_lock(
    export: Export, redis: Redis, length: int | None, header: str, sent: bytes
) -> None:
    head, body = await everything(await export(redis, length), "GET /export HTTP/1.1")
    assert head.startswith("HTTP/1.1 200")
    assert header in head.lower()
    assert body == sent
    async with Lock(redis, "export").hold(timeout=WITHIN):
        pass


async def test_after_a_loss_a_request_behind_it_on_the_connection_is_not_answered(export: Export, redis: Redis) -> None:
    port = await export(redis, None)
    behind = ("Host: shop", "", "GET /export HTTP/1.1")
    _, body = await everything(port, "GET /export HTTP/1.1", "Connection: keep-alive", *behind)
    assert body == b"6\r\nfirst\n\r\n"


# FastAPI.


async def test_fastapi_a_middleware_around_leaves_a_body_of_known_length_too_short(
    listen: Listen, redis: Redis
) -> None:
    app = fastapi_app(redis)

    @app.middleware("http")
    async def pass_on(request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
        return await call_next(request)

    @app.get("/export")
    async def endpoint(
        lease: Annotated[Lease, aiolocks.fastapi.locked("export", scope="request")],
    ) -> StreamingResponse:
        return StreamingResponse(first_and_no_more(redis), headers={"Content-Length": str(LENGTH)})

    _, body = await everything(await listen(app), "GET /export HTTP/1.1")
    assert body == b"first\n"


# aiohttp.


async def test_aiohttp_a_stream_that_ended_before_its_loss_was_known_lacks_its_end(
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


async def test_aiohttp_a_loss_behind_the_headers_alone_cuts_off_and_is_raised(listen: Listen, redis: Redis) -> None:
    left: list[BaseException] = []

    @aiolocks.aiohttp.locked("export")
    async def stream(request: web.Request, lease: Lease) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await lose(redis)
        return response

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return await stream(request)
        except Exception as error:
            left.append(error)
            raise

    head, body = await everything(await listen(aiohttp_app(redis, web.get("/export", handler))), "GET /export HTTP/1.1")
    assert (head[:12], body) == ("HTTP/1.1 200", b"")
    assert [type(error) for error in left] == [LeaseLostError]


async def test_aiohttp_what_was_prepared_but_not_sent_spoils_no_answer(listen: Listen, redis: Redis) -> None:
    @aiolocks.aiohttp.locked("export")
    async def handler(request: web.Request, lease: Lease) -> web.Response:
        response = web.Response(text="all")
        response.enable_chunked_encoding()
        await response.prepare(request)
        await lose(redis)
        return response

    port = await listen(aiohttp_app(redis, web.get("/export", handler)))
    head, body = await everything(port, "GET /export HTTP/1.1")
    assert (head[:12], body) in [("", b""), ("HTTP/1.1 200", b"")]


async def test_aiohttp_a_client_told_to_continue_is_answered_with_503(listen: Listen, redis: Redis) -> None:
    @aiolocks.aiohttp.locked("export")
    async def handler(request: web.Request, lease: Lease) -> web.Response:
        await lose(redis)
        return web.Response()

    port = await listen(aiohttp_app(redis, web.post("/export", handler)))
    lines = ("POST /export HTTP/1.1", "Expect: 100-continue", "Content-Length: 0", "Connection: close")
    head, rest = await everything(port, *lines)
    assert head == "HTTP/1.1 100 Continue"
    assert rest.startswith(b"HTTP/1.1 503 ")
