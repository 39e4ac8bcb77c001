"""A web server that gets SIGTERM cancels the requests it still serves: their locks are free once it has ended."""

import signal
import textwrap
from contextlib import AsyncExitStack

import httpx
import pytest
from redis.asyncio import Redis

from aiolocks import Lock
from tests.support.web import WITHIN
from tests.support.workers import spawn

pytestmark = pytest.mark.redis

STREAMS = 20

FASTAPI = """
    import asyncio, os, socket
    from collections.abc import AsyncIterator
    from typing import Annotated
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import StreamingResponse
    import aiolocks.fastapi
    from aiolocks import Lease

    app = FastAPI(lifespan=aiolocks.fastapi.lifespan(os.environ["AIOLOCKS_URL"], ttl=30))

    async def lines() -> AsyncIterator[bytes]:
        while True:
            yield b"line\\n"
            await asyncio.sleep(0.05)

    @app.get("/locked/{number}")
    async def locked(
        number: int, lease: Annotated[Lease, aiolocks.fastapi.locked("exports:{number}", scope="request")],
    ) -> StreamingResponse:
        return StreamingResponse(lines())

    @app.get("/block/{number}")
    async def block(number: int, request: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            async with request.app.state.locks.lock(f"exports:{number}", on_lost="flag"):
                async for line in lines():
                    yield line

        return StreamingResponse(body())

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=int(os.environ["GRACE"]))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listening])
"""

AIOHTTP = """
    import asyncio, os, socket
    from aiohttp import web
    import aiolocks.aiohttp
    from aiolocks import Lease
    from aiolocks.aiohttp import LOCKS

    async def write(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"line\\n")
            await asyncio.sleep(0.05)

    @aiolocks.aiohttp.locked("exports:{number}")
    async def locked(request: web.Request, lease: Lease) -> web.StreamResponse:
        return await write(request)

    async def block(request: web.Request) -> web.StreamResponse:
        async with request.app[LOCKS].lock("exports:" + request.match_info["number"]):
            return await write(request)

    app = web.Application()
    app.cleanup_ctx.append(aiolocks.aiohttp.cleanup_ctx(os.environ["AIOLOCKS_URL"], ttl=30))
    app.add_routes([web.get("/locked/{number}", locked), web.get("/block/{number}", block)])
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    web.run_app(app, sock=listening, print=None, shutdown_timeout=int(os.environ["GRACE"]))
"""


@pytest.mark.rest
@pytest.mark.parametrize("program", [FASTAPI, AIOHTTP], ids=["fastapi", "aiohttp"])
async def test_streams_cut_off_by_their_server_free_their_locks(redis: Redis, tcp_url: str, program: str) -> None:
    """Those with an even number under `locked`, the others under a block of their own; all last longer than GRACE."""
    with spawn("-c", textwrap.dedent(program), env={"AIOLOCKS_URL": tcp_url, "GRACE": "1"}) as worker:
        async with AsyncExitStack() as stack:
            url = f"http://127.0.0.1:{int(await worker.says())}"
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=WITHIN))
            streams = []  # httpx hangs up when one is collected
            for number in range(STREAMS):
                path = f"/block/{number}" if number % 2 else f"/locked/{number}"
                response = await stack.enter_async_context(client.stream("GET", path))
                streams.append(response.aiter_bytes())
                assert await anext(streams[-1])
            assert await held(redis) == list(range(STREAMS))
            worker.signal(signal.SIGTERM)
            await worker.ends(WITHIN)
    assert await held(redis) == []


async def held(redis: Redis) -> list[int]:
    return [number for number in range(STREAMS) if await Lock(redis, f"exports:{number}").locked()]
