"""What stands around the handlers: the manager of an application, and what OpenAPI says of `locked`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from fastapi import APIRouter, FastAPI

import aiolocks.aiohttp
import aiolocks.fastapi
from aiolocks import Lease, LockManager
from aiolocks.aiohttp import LOCKS
from tests.support.cases import one_by_one
from tests.support.elections import Leading
from tests.support.web import WITHIN, in_aiohttp, in_uvicorn

pytestmark = pytest.mark.redis


async def post(port: int) -> httpx.Response:
    async with httpx.AsyncClient(timeout=WITHIN) as client:
        return await client.post(f"http://127.0.0.1:{port}/orders/7")


def orders(app: FastAPI | APIRouter, **options: Any) -> None:
    @app.post("/orders/{order_id}", **options)
    async def pay(order_id: int, lease: Annotated[Lease, aiolocks.fastapi.locked("orders:{order_id}")]) -> str:
        return "done"


async def test_the_lifespan_keeps_a_manager_and_its_leader_until_the_own_lifespan_has_ended(tcp_url: str) -> None:
    seen, lead = list[object](), Leading()

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        await lead.elected()
        async with app.state.locks.lock("begun"):
            yield {"said": "by the own lifespan"}
            seen.append(isinstance(app.state.locks, LockManager))
            seen.append(await app.state.locks.election("scheduler").leader() is not None)

    lifespan = aiolocks.fastapi.lifespan(tcp_url, inner=own, background={"scheduler": lead}, ttl=5)
    app = FastAPI(lifespan=lifespan)
    orders(app)
    async with in_uvicorn(app) as port:
        assert (await post(port)).status_code == 200
        async with LockManager.from_url(tcp_url) as others:
            assert await others.lock("begun").locked()
    assert (seen, lead.cancelled) == ([True, True], 1)
    assert not hasattr(app.state, "locks")
    async with app.router.lifespan_context(app) as state:
        assert state == {"said": "by the own lifespan"}


async def test_a_lifespan_whose_start_fails_leaves_no_manager_and_no_leader() -> None:
    lead = Leading()

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[None]:
        await lead.elected()
        if hasattr(app.state, "locks"):
            raise LookupError("no database")
        yield

    app = FastAPI(lifespan=aiolocks.fastapi.lifespan("memory://", inner=own, background={"scheduler": lead}))
    with pytest.raises(LookupError):
        async with app.router.lifespan_context(app):
            pass
    assert not hasattr(app.state, "locks")
    assert lead.cancelled == 1


async def test_aiohttp_a_cleanup_context_keeps_a_manager_that_later_ones_find(tcp_url: str) -> None:
    seen: list[str] = []

    async def own(app: web.Application) -> AsyncIterator[None]:
        async with app[LOCKS].lock("begun"):
            yield
        seen.append("ended")

    @aiolocks.aiohttp.locked("orders:{order_id}")
    async def pay(request: web.Request, lease: Lease) -> web.Response:
        return web.Response(text="done")

    app = web.Application()
    app.cleanup_ctx.append(aiolocks.aiohttp.cleanup_ctx(tcp_url, ttl=5))
    app.cleanup_ctx.append(own)
    app.add_routes([web.post("/orders/{order_id}", pay)])
    async with in_aiohttp(app) as port:
        assert (await post(port)).status_code == 200
    assert seen == ["ended"]


@pytest.mark.parametrize("whole", [False, True], ids=["endpoint", "router"])
@one_by_one("status", [409, 423, 429, 503])
def test_openapi_shows_what_a_busy_or_lost_lock_is_answered_with(status: Any, whole: bool) -> None:
    said: dict[str, Any] = {"responses": aiolocks.fastapi.responses(status)}
    router, app = APIRouter(**said if whole else {}), FastAPI()
    orders(router, **{} if whole else said)
    app.include_router(router)
    described = app.openapi()["paths"]["/orders/{order_id}"]["post"]["responses"]
    assert sorted(described) == sorted({"200", "422", "503", str(status)})
    for code in (str(status), "503"):
        assert described[code]["headers"]["Retry-After"]["schema"]["type"] == "integer"
        assert described[code]["content"]["application/json"]["schema"]["properties"]["detail"] == {"type": "string"}


def test_openapi_is_told_of_no_status_that_locked_does_not_have() -> None:
    with pytest.raises(ValueError, match="423, 409, 429 or 503"):
        aiolocks.fastapi.responses(404)  # type: ignore[arg-type]


async def test_a_test_that_holds_the_lock_in_its_own_task_is_told_how_to() -> None:
    """httpx runs the endpoint in the task of the test."""
    app = FastAPI()
    orders(app)
    async with LockManager.from_url("memory://") as app.state.locks:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            async with app.state.locks.lock("orders:7"):
                with pytest.raises(RuntimeError, match=r"in another task, or with `await acquire\(\)`"):
                    await client.post("/orders/7")
            lease = await app.state.locks.lock("orders:7").acquire()
            assert (await client.post("/orders/7")).status_code == 423
            await lease.release()
            assert (await client.post("/orders/7")).status_code == 200
