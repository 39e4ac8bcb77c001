"""aiolocks.fastapi and aiolocks.aiohttp on real servers: what a client is told when the lock is busy or lost."""

import asyncio
import math
import socket
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Annotated, Any, Literal, cast

import anyio.from_thread
import httpx
import pytest
import pytest_asyncio
from aiohttp import web
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from starlette.exceptions import HTTPException as AnyHTTPException

import aiolocks.aiohttp
import aiolocks.fastapi
from aiolocks import Lease, LeaseLostError, Lock, LockManager, Semaphore
from aiolocks._web import Plan, retry_header
from aiolocks.aiohttp import LOCKS
from tests.support.leftovers import is_residue
from tests.support.network import until
from tests.support.primitives import queued
from tests.support.servers import RedisServer
from tests.support.web import FOR_EVER, WITHIN, aiohttp_app, fastapi_app, listening, take_away
from tests.surface.test_run import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.asyncio]

Work = Callable[[Lease], Awaitable[object]]
WorkOfTwo = Callable[[Lease, Lease], Awaitable[object]]

Serve = Callable[..., Awaitable[httpx.AsyncClient]]
"""Runs an application until the test ends, and returns a client of it."""


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    async with listening() as listen, AsyncExitStack() as stack:

        async def start(app: FastAPI | web.Application, **options: Any) -> httpx.AsyncClient:
            url = f"http://127.0.0.1:{await listen(app, **options)}"
            return await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=WITHIN))

        yield start


@pytest.fixture(params=["fastapi", "aiohttp"])
def site(request: pytest.FixtureRequest, serve: Serve) -> Serve:
    """Serves ``POST /orders/{order_id}``, which does *work* under a lock, on one of the two frameworks, or a server."""

    async def on_fastapi(redis: Redis, work: Work, name: str = "orders:{order_id}", **given: Any) -> httpx.AsyncClient:
        app = fastapi_app(redis)

        @app.post("/orders/{order_id}")
        async def endpoint(order_id: int | str, lease: Annotated[Lease, aiolocks.fastapi.locked(name, **given)]) -> str:
            await work(lease)
            return "done"

        return await serve(app, server="uvicorn" if request.param == "fastapi" else request.param)

    async def on_aiohttp(redis: Redis, work: Work, name: str = "orders:{order_id}", **given: Any) -> httpx.AsyncClient:
        @aiolocks.aiohttp.locked(name, **given)
        async def handler(request: web.Request, lease: Lease) -> web.Response:
            await work(lease)
            return web.json_response("done")

        return await serve(aiohttp_app(redis, web.post("/orders/{order_id}", handler)))

    return on_aiohttp if request.param == "aiohttp" else on_fastapi


async def nothing(lease: Lease) -> None:
    assert lease.held


async def lose(redis: Redis) -> None:
    """Take every lease away, and wait for a cancellation."""
    await take_away(redis)
    await asyncio.sleep(FOR_EVER)


async def pass_on(request: Request, call_next: Callable[[Request], Awaitable[Any]]) -> Any:
    return await call_next(request)


OrderLease = Annotated[Lease, aiolocks.fastapi.locked("orders:{order_id}")]


@pytest.mark.parametrize(("options", "status", "retry_after", "says"), [
    ({}, 423, ["19", "20"], "Locked"),
    ({"retry_after": None, "detail": "order 7 is being paid"}, 423, ["19", "20"], "order 7 is being paid"),
    ({"status": 409, "retry_after": 0}, 409, ["0"], "Conflict"),
    ({"status": 429, "retry_after": 2.5}, 429, ["3"], "Too Many Requests"),
    ({"status": 503, "retry_after": 90}, 503, ["90"], "Service Unavailable"),
])  # fmt: skip
async def test_busy_is_answered_at_once_as_chosen(
    site: Serve, redis: Redis, options: dict[str, Any], status: int, retry_after: list[str], says: str
) -> None:
    client = await site(redis, nothing, **options)
    async with Lock(redis, "orders:7", ttl=20):
        busy = await client.post("/orders/7")
        assert (await client.post("/orders/8")).status_code == 200
    assert busy.status_code == status
    assert busy.headers["Retry-After"] in retry_after
    assert says in busy.text
    assert (await client.post("/orders/7")).status_code == 200


async def test_an_answer_says_nothing_of_notes_and_holders(site: Serve, redis: Redis) -> None:
    client = await site(redis, lambda _: lose(redis), timeout=1.2, note="note of the handler")
    lock = LockManager(redis, holder="name of a service").lock("orders:7", note="note of a colleague")
    async with lock:
        await asyncio.sleep(0.7)
        assert [(one.holder, one.note) for one in await lock.holders()] == [
            ("name of a service", "note of a colleague")
        ]
        busy = await client.post("/orders/7")
    lost = await client.post("/orders/8")
    assert (busy.status_code, lost.status_code) == (423, 503)
    for answer in (busy, lost):
        said = repr((answer.text, answer.headers))
        assert not any(word in said for word in ("note of", "name of a service", socket.gethostname(), "pid"))


async def test_a_request_that_finds_so_many_waiting_is_answered_as_busy(site: Serve, redis: Redis) -> None:
    client = await site(redis, nothing, timeout=WITHIN, max_waiting=1, status=429)
    async with Lock(redis, "orders:7", ttl=20):
        waiting = asyncio.create_task(client.post("/orders/7"))
        await queued(Lock(redis, "orders:7"), 1)
        busy = await client.post("/orders/7")
    assert (busy.status_code, busy.headers["Retry-After"] in ("19", "20")) == (429, True)
    assert (await waiting).status_code == 200


async def test_when_to_come_back_is_left_out_where_it_is_unknown_and_a_second_at_least() -> None:
    for chosen, own, headers in (
        (None, 0.2, {"Retry-After": "1"}), (None, 12.1, {"Retry-After": "13"}), (None, None, {}),
        (5, None, {"Retry-After": "5"}), (0, 12.1, {"Retry-After": "0"}),
    ):  # fmt: skip
        plan = Plan("here", limit=None, timeout=0, status=423, retry_after=chosen, detail=None, options={})
        assert retry_header(plan._seconds(own)) == headers


async def test_options_of_the_lease_go_before_the_managers(site: Serve, redis: Redis) -> None:
    ttls: list[float] = []

    async def work(lease: Lease) -> None:
        ttls.append(await redis.pttl("theirs:lock:{orders:7}") / 1000)

    client = await site(redis, work, ttl=40, prefix="theirs:")
    assert (await client.post("/orders/7")).status_code == 200
    assert 39 < ttls[0] <= 40


async def test_a_limit_lets_so_many_requests_in(site: Serve, redis: Redis) -> None:
    client = await site(redis, nothing, limit=2)
    semaphore = Semaphore(redis, "orders:7", 2)
    async with semaphore:
        assert (await client.post("/orders/7")).status_code == 200
        async with semaphore:
            assert (await client.post("/orders/7")).status_code == 423


async def test_a_handler_whose_lease_is_lost_is_cancelled_and_the_answer_is_503(site: Serve, redis: Redis) -> None:
    cancelled: list[bool] = []

    async def work(lease: Lease) -> None:
        try:
            await lose(redis)
        except asyncio.CancelledError:
            cancelled.append(lease.lost)
            raise

    answer = await (await site(redis, work)).post("/orders/7")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert cancelled == [True]


async def in_spite_of_its_cancellation(lease: Lease) -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(FOR_EVER)


async def with_the_loop_blocked(lease: Lease) -> None:
    time.sleep(lease.remaining() + 0.01)


SEEN = {"Location": "/paid", "Set-Cookie": "order=7"}
RAISED: list[tuple[str, Callable[[], Any]]] = [
    ("fastapi", partial(HTTPException, 303, headers=SEEN)), ("fastapi", partial(AnyHTTPException, 200, headers=SEEN)),
    ("aiohttp", partial(web.HTTPSeeOther, "/paid", headers=SEEN)), ("aiohttp", partial(web.HTTPOk, headers=SEEN)),
]  # fmt: skip
BAD = [("fastapi", partial(HTTPException, 400, headers=SEEN)), ("aiohttp", partial(web.HTTPBadRequest, headers=SEEN))]


@pytest.mark.rest
@pytest.mark.parametrize("wait_release", [True, False])
@pytest.mark.parametrize("end", [nothing, in_spite_of_its_cancellation, with_the_loop_blocked])
@pytest.mark.parametrize(("site", "answer"), [("fastapi", None), ("aiohttp", None), *RAISED], indirect=["site"])
async def test_a_handler_that_ends_without_its_lease_is_not_answered_with_success(
    site: Serve, redis: Redis, answer: Callable[[], Any] | None, end: Work, wait_release: bool
) -> None:
    lapses = end is with_the_loop_blocked

    async def work(lease: Lease) -> None:
        if not lapses:
            await take_away(redis)
        await end(lease)
        if answer is not None:
            raise answer()

    def locks(request: Any = None) -> LockManager:  # which aiohttp passes, and FastAPI does not
        return LockManager(redis, ttl=0.1 if lapses else 1, renew=not lapses, wait_release=wait_release)

    assert (await (await site(redis, work, locks=locks)).post("/orders/7")).status_code == 503


@pytest.mark.parametrize("options", [{}, {"on_lost": "flag"}], ids=str)
@pytest.mark.parametrize(("site", "answer"), [*RAISED, *BAD], indirect=["site"])
async def test_an_answer_that_a_handler_raises_is_sent_as_it_is(
    site: Serve, redis: Redis, answer: Callable[[], Any], options: dict[str, Any]
) -> None:
    raised = answer()

    async def work(lease: Lease) -> None:
        if options or raised.status_code >= 400:
            await take_away(redis)
        raise raised

    sent = await (await site(redis, work, **options)).post("/orders/7")
    assert (sent.status_code, sent.headers["Location"], sent.cookies["order"]) == (raised.status_code, "/paid", "7")
    assert raised.__context__ is None
    assert "hold" not in [frame.name for frame in traceback.extract_tb(raised.__traceback__)]
    assert not await Lock(redis, "orders:7").locked()


async def test_without_redis_it_is_503(site: Serve, own_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async with Redis.from_url(own_server.url, retry=Retry(NoBackoff(), 0)) as redis:
        client = await site(redis, nothing, status=423)
        own_server.kill()
        answer = await client.post("/orders/7")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "Redis could not be asked for <Lock 'orders:7'>: ConnectionError" in caplog.text


@pytest.mark.rest
@pytest.mark.parametrize("error", [ValueError(), RedisConnectionError(), aiolocks.LockError("no", name="other")])
async def test_an_error_of_the_handler_is_its_own(site: Serve, redis: Redis, error: Exception) -> None:
    async def work(lease: Lease) -> None:
        raise error

    client = await site(redis, work)
    # A fault in the program is not "try again".
    assert (await client.post("/orders/7")).status_code == 500
    assert not await Lock(redis, "orders:7").locked()


@pytest.mark.parametrize("site", ["fastapi", "aiohttp", "hypercorn", "granian"], indirect=True)
async def test_a_lock_is_held_until_the_handler_ends_though_the_client_has_gone(site: Serve, redis: Redis) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def work(lease: Lease) -> None:
        begun.set()
        await go_on.wait()

    client = await site(redis, work)
    lock = Lock(redis, "orders:7")
    request = asyncio.create_task(client.post("/orders/7"))
    await begun.wait()
    request.cancel()
    await asyncio.wait([request])
    assert await lock.locked()
    go_on.set()
    async with lock.hold(timeout=WITHIN):
        pass


@pytest.mark.rest
@pytest.mark.parametrize("value", ["é" * 513, "x" * 1025])
async def test_a_value_that_makes_too_long_a_name_is_the_clients_mistake(site: Serve, redis: Redis, value: str) -> None:
    client = await site(redis, nothing, name="{order_id}")
    assert (await client.post(f"/orders/{'x' * 1024}")).status_code == 200
    refused = await client.post(f"/orders/{value}")
    assert refused.status_code in (400, 422)
    assert f"name must be 1 to 1024 bytes of UTF-8, not {len(value.encode())}" in refused.text


ANY: list[Callable[..., object]] = [aiolocks.fastapi.locked, aiolocks.aiohttp.locked]
NO_NAMES: list[tuple[Any, type[Exception], str | None]] = [
    *((template, ValueError, None) for template in ("orders:{}", "orders:{0}", "orders:{order.id}", "{order[id]}")),
    *((template, ValueError, None) for template in ("{", "{order_id:{}}", "", "x" * 1025, "{a!x}", "{a:{b:{c}}}")),
    *((name, TypeError, f"template or a %s .* not {type(name).__name__}") for name in (42, None, b"orders")),
]
WRONG: list[tuple[dict[str, object], type[Exception], str]] = [
    ({"status": 200}, ValueError, "423, 409, 429 or 503"), ({"status": "423"}, ValueError, "423, 409, 429 or 503"),
    ({"status": None}, ValueError, "423, 409, 429 or 503"),
    ({"retry_after": -1}, ValueError, "retry_after must be >= 0"),
    ({"retry_after": math.inf}, ValueError, "retry_after must be finite"),
    ({"retry_after": "1"}, TypeError, "retry_after must be a number"),
    ({"timeout": -1}, ValueError, "timeout must be >= 0"), ({"timeout": "1"}, TypeError, "timeout must be a number"),
    ({"detail": 42}, TypeError, "detail must be a str"), ({"limit": 0}, ValueError, "limit must be between 1"),
    ({"limit": "2"}, TypeError, "limit must be an int"), ({"ttl": 0}, ValueError, "ttl must be >= 0.1"),
    ({"tll": 5}, TypeError, "has no 'tll'; its options are ttl, "),
    ({"acquire_timeout": 5}, TypeError, r"locked\(\) has no 'acquire_timeout': use timeout="),
    ({"wait_release": False}, TypeError, r"locked\(\) has no 'wait_release': a handler always waits"),
    ({"blocking_timeout": 5}, TypeError, r"locked\(\) has no 'blocking_timeout': use timeout="),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "error", "says"), WRONG, ids=[str(wrong) for wrong, _, _ in WRONG])
async def test_a_mistake_is_refused_at_the_declaration(wrong: dict[str, object], error: Any, says: str) -> None:
    for locked in ANY:
        with pytest.raises(error, match=says):
            locked("orders:{order_id}", **wrong)


@pytest.mark.parametrize(("wrong", "error", "says"), NO_NAMES)
async def test_a_name_that_is_none_is_refused_at_once(wrong: Any, error: type[Exception], says: str | None) -> None:
    for locked, right in zip(ANY, ("dependency", "function"), strict=True):
        with pytest.raises(error, match=says and says.replace("%s", right)):
            locked(wrong)


@pytest.fixture(params=["fastapi", "aiohttp"])
def two_locks(request: pytest.FixtureRequest, serve: Serve) -> Serve:
    """Serves ``POST /transfer`` under the locks "from" and "to", on one of the two frameworks."""

    async def on_fastapi(redis: Redis, work: WorkOfTwo) -> httpx.AsyncClient:
        app = fastapi_app(redis)

        @app.post("/transfer")
        async def endpoint(
            source: Annotated[Lease, aiolocks.fastapi.locked("from")],
            target: Annotated[Lease, aiolocks.fastapi.locked("to", status=409)],
        ) -> None:
            await work(source, target)

        return await serve(app)

    async def on_aiohttp(redis: Redis, work: WorkOfTwo) -> httpx.AsyncClient:
        @aiolocks.aiohttp.locked("from")
        @aiolocks.aiohttp.locked("to", status=409)
        async def handler(request: web.Request, source: Lease, target: Lease) -> web.Response:
            await work(source, target)
            return web.Response()

        return await serve(aiohttp_app(redis, web.post("/transfer", handler)))

    return on_fastapi if request.param == "fastapi" else on_aiohttp


async def test_one_request_may_hold_several_locks(two_locks: Serve, redis: Redis) -> None:
    async def work(source: Lease, target: Lease) -> None:
        assert (source.name, target.name) == ("from", "to")
        assert source.held
        assert target.held

    client = await two_locks(redis, work)
    assert (await client.post("/transfer")).status_code == 200
    async with Lock(redis, "from"):
        assert (await client.post("/transfer")).status_code == 423
    async with Lock(redis, "to"):
        assert (await client.post("/transfer")).status_code == 409
        assert not await Lock(redis, "from").locked()


@pytest.mark.rest
@pytest.mark.parametrize("lost", ["from", "to"])
async def test_the_loss_of_one_of_two_locks_is_503_and_frees_both(two_locks: Serve, redis: Redis, lost: str) -> None:
    async def work(source: Lease, target: Lease) -> None:
        await redis.delete(f"aiolocks:lock:{{{lost}}}")
        await asyncio.sleep(FOR_EVER)

    assert (await (await two_locks(redis, work)).post("/transfer")).status_code == 503
    assert not await Lock(redis, "from").locked()
    assert not await Lock(redis, "to").locked()


async def test_fastapi_a_sync_endpoint_goes_on_and_is_answered_with_503(serve: Serve, redis: Redis) -> None:
    app, seen = fastapi_app(redis), list[str]()

    @app.post("/orders/{order_id}")
    def endpoint(order_id: int, lease: OrderLease) -> str:
        anyio.from_thread.run(take_away, redis)
        wait_until(lambda: not lease.held)
        with pytest.raises(LeaseLostError, match="it is gone from the server: its key expired"):
            lease.check()
        time.sleep(0.1)
        seen.append("went on")
        return "done"

    assert (await (await serve(app)).post("/orders/7")).status_code == 503
    assert seen == ["went on"]


async def test_fastapi_the_name_may_come_from_a_dependency_and_the_manager_too(serve: Serve, redis: Redis) -> None:
    async def manager(request: Request) -> LockManager:
        return LockManager(redis, prefix="theirs:")

    def name(tenant: int, user: Annotated[str, Depends(lambda: "ann")]) -> str:
        return f"{tenant}/{user}"

    app = FastAPI()

    @app.post("/export")
    async def endpoint(lease: Annotated[Lease, aiolocks.fastapi.locked(name, locks=manager)]) -> str:
        keys = [key async for key in redis.scan_iter("theirs:*") if not is_residue(key)]
        return f"{lease.name} {len(keys)}"

    assert (await (await serve(app)).post("/export?tenant=5")).json() == "5/ann 1"


@pytest.mark.rest
@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize(("scope", "runner"), [
    pytest.param("function", "uvicorn", marks=pytest.mark.smoke),
    *(("request", each) for each in ("uvicorn", "hypercorn", "granian")),
])  # fmt: skip
async def test_fastapi_a_stream_is_sent_under_the_lock_in_the_scope_of_the_request_though_its_client_leaves(
    serve: Serve, redis: Redis, scope: Literal["function", "request"], runner: str, leaves: bool
) -> None:
    app, go_on, held, lock = fastapi_app(redis), asyncio.Event(), list[bool](), Lock(redis, "export")

    @app.get("/export")
    async def endpoint(lease: Annotated[Lease, aiolocks.fastapi.locked("export", scope=scope)]) -> StreamingResponse:
        async def rows() -> AsyncIterator[str]:
            try:
                while not go_on.is_set():
                    yield "row"
                    await asyncio.sleep(0.01)
            finally:
                held.append(lease.held)

        return StreamingResponse(rows())

    async with (await serve(app, server=runner)).stream("GET", "/export") as answer:
        rows = answer.aiter_text()
        assert await anext(rows) == "row"
        assert await lock.locked() is (scope == "request")
        if not leaves:
            go_on.set()
            assert [row async for row in rows if row.strip("row")] == []
    async with lock.hold(timeout=WITHIN):
        await until(lambda: held == [scope == "request"])


async def test_fastapi_a_dependency_in_the_wrong_place_is_told_where_it_belongs(redis: Redis) -> None:
    lock: Any = aiolocks.fastapi.locked("orders:{order_id}")
    app, manager = FastAPI(), cast("Any", LockManager(redis))

    async def wrapped(order_id: int, lease: Annotated[Lease, Depends(lock)]) -> None: ...

    async def endpoint(order_id: int) -> None: ...

    for declare in (lambda: app.post("/orders/{order_id}")(wrapped), lambda: lock(endpoint)):
        with pytest.raises(TypeError, match=r"write lease: Annotated\[Lease, locked\(\.\.\.\)\]"):
            declare()
    with pytest.raises(TypeError, match="locks must be a dependency that returns a LockManager, not LockManager"):
        aiolocks.fastapi.locked("orders", locks=manager)


async def test_fastapi_a_mistake_is_an_error_that_says_what_to_do(redis: Redis) -> None:
    app = FastAPI()

    @app.post("/orders", dependencies=[aiolocks.fastapi.locked("orders")])
    @app.post("/orders/{order_id}", dependencies=[aiolocks.fastapi.locked("{shop}:{order_id}")])
    async def endpoint(shop: str = "") -> None: ...

    # It raises what the application does, as its log would have it.
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
    with pytest.raises(RuntimeError, match=r"app\.state\.locks is missing: put a LockManager there"):
        await client.post("/orders")
    app.state.locks = redis
    with pytest.raises(TypeError, match=r"needs a LockManager in app\.state\.locks,.* LockManager\(redis\), not Redis"):
        await client.post("/orders")
    app.state.locks = LockManager(redis)
    with pytest.raises(RuntimeError, match=r"names 'shop', which is not a parameter of the path .* has: order_id"):
        await client.post("/orders/7?shop=a")


async def test_fastapi_other_methods_are_locked_only_where_the_route_has_them(serve: Serve, redis: Redis) -> None:
    app = fastapi_app(redis)

    @app.api_route("/orders/{order_id}", methods=["GET", "HEAD"])
    async def endpoint(order_id: int, lease: OrderLease) -> str:
        return "done"

    client = await serve(app)
    async with Lock(redis, "orders:7"):
        busy = await client.head("/orders/7")
        assert (busy.status_code, busy.text) == (423, "")
        assert busy.headers["Retry-After"] in ("29", "30")
        assert (await client.options("/orders/7")).status_code == 405
    assert (await client.head("/orders/7")).status_code == 200


async def test_aiohttp_handlers_may_be_methods_views_and_in_nested_applications(serve: Serve, redis: Redis) -> None:
    class Orders:
        @aiolocks.aiohttp.locked("orders:{order_id}")
        async def post(self, request: web.Request, lease: Lease) -> web.Response:
            return web.Response(text=lease.name)

    class Carts(web.View):
        @aiolocks.aiohttp.locked(lambda request: f"carts:{request.query['cart_id']}")
        async def post(self, lease: Lease) -> web.Response:
            return web.Response(text=lease.name)

    app = aiohttp_app(redis, web.post("/orders/{order_id}", Orders().post))
    nested = web.Application()
    nested.add_routes([web.view("/carts", Carts)])
    app.add_subapp("/shop", nested)
    client = await serve(app)
    assert (await client.post("/orders/7")).text == "orders:7"
    assert (await client.post("/shop/carts?cart_id=7")).text == "carts:7"


async def test_aiohttp_a_mistake_says_what_to_do(serve: Serve, redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: web.Request, lease: Lease) -> web.Response:
        return web.Response()

    def app(template: str) -> web.Application:
        app = web.Application()
        app.add_routes([web.post("/orders/{order_id}", aiolocks.aiohttp.locked(template)(handler))])
        return app

    without, of_redis, elsewhere = app("orders"), app("orders"), app("{shop}:{order_id}")
    of_redis[LOCKS] = redis  # type: ignore[misc]  # the mistake
    elsewhere[LOCKS] = LockManager(redis)
    for wrong, says in [
        (without, "app[LOCKS] is missing: put a LockManager there"),
        (of_redis, "such as LockManager(redis), not Redis"),
        (elsewhere, "names 'shop', which is not a parameter of the path '/orders/7'; it has: order_id"),
    ]:
        assert (await (await serve(wrong)).post("/orders/7?shop=a")).status_code == 500
        assert says in caplog.text
