"""What type checkers must make of `locked` in both web modules. Checked by mypy and pyright, never run."""

from typing import Annotated

from aiohttp import web
from fastapi import FastAPI

import aiolocks.aiohttp
import aiolocks.fastapi
from aiolocks import Lease, LockManager


async def endpoint(
    order_id: int,
    order: Annotated[Lease, aiolocks.fastapi.locked("orders:{order_id}", status=429, retry_after=None, ttl=5)],
    export: Annotated[Lease, aiolocks.fastapi.locked("export", limit=3, detail="later", scope="request", renew=False)],
) -> None: ...


@aiolocks.aiohttp.locked("carts:{cart_id}", timeout=2, status=409, retry_after=2.5, max_hold=60)
async def handler(request: web.Request, lease: Lease) -> web.Response:
    return web.Response()


def manager(request: web.Request) -> LockManager:
    return request.config_dict[aiolocks.aiohttp.LOCKS]


FastAPI(lifespan=aiolocks.fastapi.lifespan("redis://localhost", ttl=10), responses=aiolocks.fastapi.responses(409))


async def schedule(lease: Lease) -> None: ...


FastAPI(lifespan=aiolocks.fastapi.lifespan("redis://localhost", background={"scheduler": schedule}))
web.Application().cleanup_ctx.append(aiolocks.aiohttp.cleanup_ctx("redis://localhost", ttl=10))

aiolocks.aiohttp.locked(lambda request: request.path, locks=manager)

aiolocks.fastapi.locked("orders", tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
aiolocks.aiohttp.locked("orders", tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
aiolocks.fastapi.locked("orders", ttl="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
aiolocks.aiohttp.locked("orders", ttl="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
aiolocks.fastapi.locked("orders", status=404)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
aiolocks.aiohttp.locked("orders", status=404)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
