"""The fixtures of the conformance table: every row of it on every server that the scripts run on.

A plugin, which the root conftest registers.
"""

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import LockManager
from tests.support import clients
from tests.support.inside import idle_sessions_end_after, sessions_here
from tests.support.lateness import TooLateError
from tests.support.leftovers import Leftovers
from tests.support.primitives import WITH_ONE_PLACE, Make, Row, until
from tests.support.servers import RedisServer

_numbers = itertools.count()


@pytest.fixture(params=["redis"] if clients.CHOSEN or "AIOLOCKS_WITHOUT_MEMORY" in os.environ else ["memory", "redis"])
def url(request: pytest.FixtureRequest, redis_url: str) -> str:
    """A server that the scripts run on, empty."""
    return redis_url if request.param == "redis" else f"memory://conformance-{next(_numbers)}"


@pytest_asyncio.fixture
async def quick_sessions(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """End idle sessions sooner, since a test's own end waits for that: some hundred times 0.5 s."""
    idle_sessions_end_after(monkeypatch, 0.02)
    yield

    async def ended() -> bool:
        return not sessions_here()

    with contextlib.suppress(TooLateError):  # what stays is for the check for leftovers to report
        await until(ended, within=1)


@pytest_asyncio.fixture
async def client(url: str, server: RedisServer) -> AsyncIterator[Redis]:
    if clients.CHOSEN:
        async with clients.chosen_client(server) as chosen:
            yield chosen
        return
    async with LockManager.from_url(url) as locks:
        yield locks.client


@pytest_asyncio.fixture
async def stranger(url: str, server: RedisServer) -> AsyncIterator[Redis]:
    """A client with a pool of its own and another address of the server: both sides take it for another process."""
    if clients.CHOSEN == "cluster":
        async with clients.plain_client(server) as another:
            yield another
        return
    async with LockManager.from_url(server.tcp_url if url == server.url else url) as locks:
        yield locks.client


@pytest.fixture
def connections(url: str, client: Redis, server: RedisServer) -> Callable[[], int]:
    """Counts the connections that the test has open to that server; of several servers, to that which has most."""
    if url == server.url:
        leftovers = Leftovers(server)
        return leftovers.most_connections
    in_memory = client.connection_pool.connection_kwargs["server"]
    return lambda: len(in_memory.sockets)


@pytest.fixture(params=WITH_ONE_PLACE, ids=str)
def row(request: pytest.FixtureRequest) -> Row:
    assert isinstance(request.param, Row)
    return request.param


@pytest.fixture
def make(row: Row, client: Redis, url: str, server: RedisServer, quick_sessions: None) -> Make:
    return Make(row, client, server.flush if url == server.url else None)
