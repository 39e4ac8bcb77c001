"""Real servers for web applications, and a client that shows every byte that one sends."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Protocol

import pytest
import uvicorn
from aiohttp import web
from fastapi import FastAPI
from redis.asyncio import Redis

from aiolocks import LockManager
from aiolocks.aiohttp import LOCKS

from .leftovers import is_residue

WITHIN = 10
"""Seconds after which a test that waits gives up."""

FOR_EVER = 30.0
"""Seconds that only a cancellation shortens."""


@asynccontextmanager
async def in_uvicorn(app: Any) -> AsyncIterator[int]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, ws="auto", log_level="critical"))
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(WITHIN):
        while not server.started:
            await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def in_hypercorn(app: Any) -> AsyncIterator[int]:
    serve, ended = pytest.importorskip("hypercorn.asyncio").serve, asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    port, bind = listening.getsockname()[1], f"fd://{listening.detach()}"
    config = pytest.importorskip("hypercorn.config").Config.from_mapping(bind=bind, errorlog=None)
    serving = asyncio.create_task(serve(app, config, shutdown_trigger=ended.wait))
    try:
        yield port
    finally:
        ended.set()
        await serving


@asynccontextmanager
async def in_granian(app: Any) -> AsyncIterator[int]:
    """Run it in this loop. Otherwise Granian has processes of its own, and configures Python's logging."""
    granian = pytest.importorskip("granian.server.embed")
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as reserved:
        patch.setattr("granian.server.common.configure_logging", lambda *_: None)
        port = reserved.getsockname()[1]
        server = granian.Server(app, port=port, interface=granian.Interfaces.ASGINL)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(WITHIN):
        while not serving.done():
            with suppress(OSError):
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                break
            await asyncio.sleep(0.005)
    try:
        yield port
    finally:
        server.stop()
        await serving


@asynccontextmanager
async def in_aiohttp(app: web.Application, **options: Any) -> AsyncIterator[int]:
    runner = web.AppRunner(app, **options)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Listen(Protocol):
    """Serves an application until the test ends, and returns its port."""

    async def __call__(self, app: Any, **options: Any) -> int: ...


@asynccontextmanager
async def listening() -> AsyncIterator[Listen]:
    async with AsyncExitStack() as stack:

        async def start(app: Any, server: str = "uvicorn", **options: Any) -> int:
            of_asgi = {"uvicorn": in_uvicorn, "hypercorn": in_hypercorn, "granian": in_granian}[server]
            run = in_aiohttp(app, **options) if isinstance(app, web.Application) else of_asgi(app)
            return await stack.enter_async_context(run)

        yield start


def fastapi_app(redis: Redis) -> FastAPI:
    app = FastAPI()
    app.state.locks = LockManager(redis, ttl=1)
    return app


def aiohttp_app(redis: Redis, *routes: web.AbstractRouteDef, **options: Any) -> web.Application:
    app = web.Application(**options)
    app[LOCKS] = LockManager(redis, ttl=1)
    app.add_routes(routes)
    return app


async def take_away(redis: Redis) -> None:
    async for key in redis.scan_iter():
        if not is_residue(key):
            await redis.delete(key)


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to *port* for at most `WITHIN` seconds."""
    async with asyncio.timeout(WITHIN):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def everything(port: int, *lines: str) -> tuple[str, bytes]:
    """Send the head of a request, and return the head of the answer and all that follows until the server hangs up."""
    async with connection(port) as (reader, writer):
        writer.write("\r\n".join([*lines, "Host: shop", "", ""]).encode())
        head, _, rest = (await reader.read(-1)).partition(b"\r\n\r\n")
    return head.decode(), rest


WEBSOCKET = (
    "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)  # fmt: skip
"""What makes a GET request the opening of a WebSocket."""
