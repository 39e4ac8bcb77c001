"""`background=` of both web modules: one worker of the fleet leads, whatever its function does."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest
from aiohttp import web
from fastapi import FastAPI

import aiolocks.aiohttp
import aiolocks.fastapi
from aiolocks import Lease
from tests.support.elections import Leading
from tests.support.lateness import SLACK, assert_within, in_time
from tests.support.virtual import clock

pytest_plugins = ["tests.support.table"]
pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("quick_sessions")]

NAME = "scheduler"
TTL = 8.0

in_virtual_time = pytest.mark.parametrize("url", ["memory"], indirect=True)

Application = Callable[..., AbstractAsyncContextManager[object]]


def of_fastapi(url: str, **options: Any) -> AbstractAsyncContextManager[object]:
    return aiolocks.fastapi.lifespan(url, ttl=TTL, **options)(FastAPI())


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
@pytest.mark.parametrize(("works", "pauses"), [(0, [1, 2, 4, 8, 8]), (2 * TTL, [1] * 5)], ids=["at once", "later"])
async def test_a_function_that_fails_is_one_error_each_time_and_stands_again_after_a_pause(
    url: str, caplog: pytest.LogCaptureFixture, works: float, pauses: list[float]
) -> None:
    """The pauses grow up to a TTL while it fails at once. After a while of work it stands again soon."""
    began: list[float] = []

    async def fails(lease: Lease) -> None:
        began.append(clock())
        await asyncio.sleep(works)
        raise (ValueError("own"), asyncio.CancelledError())[len(began) % 2]

    async with of_fastapi(url, background={NAME: fails}):
        while len(began) < 6:
            await asyncio.sleep(0.1)
        await asyncio.sleep(works / 2)
    assert [round(later - earlier - works, 1) for earlier, later in pairwise(began)] == pauses
    said = errors(caplog)
    assert len(said) == (5 if works else 6)
    assert said[0] == f"<Election '{NAME}' idle>: failed, and stands again in 1 s"


class OwnError(BaseException):
    """Is no Exception."""


@in_virtual_time
@pytest.mark.parametrize("raises", [None, OwnError("own")], ids=["returns", "raises"])
async def test_a_function_that_ends_for_good_does_so_in_this_worker_and_the_next_one_runs_it(
    application: Application, url: str, caplog: pytest.LogCaptureFixture, raises: OwnError | None
) -> None:
    async def ends(lease: Lease) -> None:
        ran.append(lease.fencing_token)
        if raises:
            raise raises

    ran, other = list[int](), Leading()
    async with application(url, background={NAME: ends}), application(url, background={NAME: other}):
        await other.elected()
        await asyncio.sleep(2 * TTL)
    assert len(ran) == 1
    assert errors(caplog) == ([f"<Election '{NAME}' idle>: ended for good by OwnError"] if raises else [])


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


@pytest.mark.parametrize("make", [aiolocks.fastapi.lifespan, aiolocks.aiohttp.cleanup_ctx])
async def test_a_wrong_background_is_an_error_that_says_what_to_give(make: Any) -> None:
    for wrong, error, says in (
        (print, TypeError, "must be a mapping such as"), ({"": print}, ValueError, "name"),
        ({NAME: None}, TypeError, "must have a coroutine function for 'scheduler'"), ({3: print}, TypeError, "name"),
    ):  # fmt: skip
        with pytest.raises(error, match=says):
            make("memory://", background=wrong)
