"""What several fault tests use: clients through the proxy and of a server of their own, and a clock to be stepped."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks.testing import FaultProxy
from tests.faults.support.asking import retrying
from tests.faults.support.server_clock import NoShim, ServerClock
from tests.support.servers import RedisServer


@pytest_asyncio.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Redis]:
    """A client through the proxy that retries."""
    async with retrying(proxy) as through_proxy:
        yield through_proxy


@pytest_asyncio.fixture
async def another(redis_url: str) -> AsyncIterator[Redis]:
    """A client beside `redis`, with a session of its own."""
    async with Redis.from_url(redis_url) as made:
        yield made


@pytest_asyncio.fixture
async def own(own_server: RedisServer) -> AsyncIterator[Redis]:
    """A client of `own_server`."""
    async with Redis.from_url(own_server.url) as made:
        yield made


@pytest_asyncio.fixture
async def other(own_server: RedisServer) -> AsyncIterator[Redis]:
    """Another client of `own_server`."""
    async with Redis.from_url(own_server.url) as made:
        yield made


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[ServerClock]:
    """The wall clock of a server that is started with its `environment`."""
    try:
        built = ServerClock(tmp_path)
    except NoShim as missing:
        pytest.skip(str(missing))
    with closing(built):
        yield built
