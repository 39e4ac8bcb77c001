"""`background=` of both web modules: one worker of the fleet leads, whatever its function does."""

import asyncio
import logging
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest
from aiohttp import web
from fastapi import FastAPI
from redis.asyncio import Redis

import aiolocks.aiohttp
import aiolocks.fastapi
from aiolocks import Election, Lease
from tests.support.children import family
from tests.support.elections import Leading
from tests.support.lateness import SLACK, assert_within, in_time
from tests.support.virtual import clock

pytest_plugins = ["tests.support.table"]
pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quick_sessions")]

NAME = "scheduler"
TTL = 8.0

in_virtual_time = pytest.mark.parametrize("url", ["memory"], indirect=True)

Lead = Callable[[Lease], Awaitable[object]]
Application = Callable[..., AbstractAsyncContextManager[None]]


@asynccontextmanager
async def of_fastapi(url: str, **options: Any) -> AsyncIterator[None]:
    async with aiolocks.fastapi.lifespan(url, ttl=TTL, **options)(FastAPI()):
        yield


@asynccontextmanager
async def of_aiohttp(url: str, **options: Any) -> AsyncIterator[None]:
    app = web.Application()
    app.cleanup_ctx.append(aiolocks.aiohttp.cleanup_ctx(url, ttl=TTL, **options))
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        yield
    finally:
        await runner.cleanup()


@pytest.fixture(params=[of_fastapi, of_aiohttp], ids=["fastapi", "aiohttp"])
def application(request: pytest.FixtureRequest) -> Any:
    """Runs one application, from its start to its shutdown."""
    return request.param


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


async def test_one_worker_leads_and_resigns_at_its_shutdown(application: Application, url: str) -> None:
    leads = Leading(), Leading()
    async with AsyncExitStack() as other:
        async with application(url, background={NAME: leads[0]}):
            first = await leads[0].elected()
            await other.enter_async_context(application(url, background={NAME: leads[1]}))
            await asyncio.sleep(0.3)
            assert leads[1].terms == []
        assert (leads[0].cancelled, first.held, first.lost) == (1, False, False)
        async with in_time(SLACK * 0.2):
            assert (await leads[1].elected()).fencing_token > first.fencing_token


@in_virtual_time
async def test_a_function_that_fails_is_one_error_each_time_and_stands_again_after_longer_pauses(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    began: list[float] = []

    async def fails(lease: Lease) -> None:
        began.append(clock())
        await asyncio.sleep(0)
        raise (ValueError("own"), asyncio.CancelledError())[len(began) % 2]

    async with of_fastapi(url, background={NAME: fails}):
        while len(began) < 6:
            await asyncio.sleep(0.1)
    pauses = [round(later - earlier, 1) for earlier, later in pairwise(began)]
    assert pauses == [1, 2, 4, 8, 8]  # up to a TTL
    said = errors(caplog)
    assert len(said) == 6
    assert said[0] == f"<Election '{NAME}' idle>: failed, and stands again in 1 s"


@in_virtual_time
async def test_a_function_that_failed_after_a_while_stands_again_soon(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    began: list[float] = []

    async def fails(lease: Lease) -> None:
        began.append(clock())
        await asyncio.sleep(2 * TTL)
        raise ValueError("own")

    async with of_fastapi(url, background={NAME: fails}):
        while len(began) < 4:
            await asyncio.sleep(0.1)
    assert all(later - earlier < 2 * TTL + 1.1 for earlier, later in pairwise(began))
    assert len(errors(caplog)) == 3


@in_virtual_time
async def test_a_function_that_returns_ends_in_this_worker_and_the_next_one_runs_it(
    application: Application, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def done(lease: Lease) -> None:
        ran.append(lease.fencing_token)

    ran: list[int] = []
    other = Leading()
    async with application(url, background={NAME: done}), application(url, background={NAME: other}):
        await other.elected()
        await asyncio.sleep(2 * TTL)
    assert len(ran) == 1
    assert errors(caplog) == []


class OwnError(BaseException):
    """Is no Exception."""


@in_virtual_time
async def test_what_is_no_exception_ends_it_in_this_worker_and_is_one_error(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(lease: Lease) -> None:
        raise OwnError("own")

    other = Leading()
    async with of_fastapi(url, background={NAME: fails}), of_fastapi(url, background={NAME: other}):
        await other.elected()
        await asyncio.sleep(2 * TTL)
    assert errors(caplog) == [f"<Election '{NAME}' idle>: ended for good by OwnError"]


@in_virtual_time
async def test_a_function_that_does_not_end_delays_the_shutdown_by_a_ttl_at_most(
    application: Application, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(lease: Lease) -> None:
        with anyio.CancelScope(shield=True):
            await forever.wait()

    forever, lead = asyncio.Event(), Leading(work)
    async with application(url, background={NAME: lead}):
        lease = await lead.elected()
        began = clock()
    assert_within(clock() - began, TTL + SLACK * 0.5)
    assert lease.held
    forever.set()
    assert errors(caplog) == [
        f"<Election '{NAME}' leading>: it has not ended a TTL after its cancellation; the shutdown goes on"
    ]
    assert await lease.wait_lost() is False


async def test_it_runs_around_the_applications_own_lifespan(url: str) -> None:
    seen: list[str] = []

    async def lead(lease: Lease) -> None:
        elected.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("lead ends")

    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        async with asyncio.timeout(10):
            await elected.wait()
        yield {"own": "state"}
        seen.append(f"own ends, leader {await app.state.locks.election(NAME).leader() is not None}")

    elected = asyncio.Event()
    async with aiolocks.fastapi.lifespan(url, inner=own, background={NAME: lead})(FastAPI()) as state:
        assert state == {"own": "state"}
    assert seen == ["own ends, leader True", "lead ends"]


async def test_a_start_that_fails_ends_it(url: str) -> None:
    @asynccontextmanager
    async def own(app: FastAPI) -> AsyncIterator[None]:
        await lead.elected()
        if lead.terms:
            raise ValueError("own")
        yield

    lead = Leading()
    with pytest.raises(ValueError, match="own"):
        async with aiolocks.fastapi.lifespan(url, inner=own, background={NAME: lead})(FastAPI()):
            pass
    assert lead.cancelled == 1


@pytest.mark.parametrize("make", [aiolocks.fastapi.lifespan, aiolocks.aiohttp.cleanup_ctx])
async def test_a_wrong_background_is_an_error_that_says_what_to_give(make: Any) -> None:
    for wrong, error, says in (
        (print, TypeError, "must be a mapping such as"),
        ({NAME: None}, TypeError, "must have a coroutine function for 'scheduler'"),
        ({"": print}, ValueError, "name"),
        ({3: print}, TypeError, "name"),
    ):
        with pytest.raises(error, match=says):
            make("memory://", background=wrong)


WORKER = """
    import asyncio, os, socket

    import uvicorn
    from fastapi import FastAPI

    import aiolocks.fastapi

    async def lead(lease):
        print("leads", lease.fencing_token, flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("leads no more", lease.held, flush=True)

    background = {"scheduler": lead}
    app = FastAPI(lifespan=aiolocks.fastapi.lifespan(os.environ["AIOLOCKS_URL"], ttl=30, background=background))
    listening = socket.create_server(("127.0.0.1", 0))
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])
"""


@pytest.mark.rest
@pytest.mark.redis
async def test_a_worker_of_uvicorn_that_gets_sigterm_hands_over_at_once(redis: Redis, tcp_url: str) -> None:
    command = (sys.executable, "-c", textwrap.dedent(WORKER))
    environment = {**os.environ, "AIOLOCKS_URL": tcp_url}
    with family(*command, env=environment) as first, family(*command, env=environment) as second:
        workers = [first, second]
        told: dict[int, asyncio.Task[str]] = {}
        for at, worker in enumerate(workers):
            assert worker.stdout is not None
            told[at] = asyncio.create_task(asyncio.to_thread(worker.stdout.readline))
        await asyncio.wait(told.values(), return_when=asyncio.FIRST_COMPLETED)
        leader = next(at for at, line in told.items() if line.done())
        while not await Election(redis, NAME).waiters():
            await asyncio.sleep(0.01)
        term = int(told[leader].result().split()[1])
        workers[leader].send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):  # of a TTL of 30
            assert int((await told[1 - leader]).split()[1]) > term
        workers[1 - leader].send_signal(signal.SIGTERM)
        for worker in workers:
            printed, _ = await asyncio.to_thread(worker.communicate, timeout=10)
            assert printed == "leads no more True\n"
    assert await Election(redis, NAME).leader() is None
