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
from tests.support.clusters import ClusterSet
from tests.support.servers import RedisServer


def pytest_itemcollected(item: pytest.Item) -> None:
    """All tests of this folder break a server, a connection or a process."""
    item.add_marker("redis")
    item.add_marker("faults")


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


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[ClusterSet]:
    with ClusterSet() as running:
        yield running


@pytest.fixture
def cluster(running_cluster: ClusterSet) -> Iterator[ClusterSet]:
    """One for all tests of a module; whatever one of them breaks is repaired here."""
    yield running_cluster
    for server in running_cluster.servers:
        if not server.running:
            server.restart()
        server.resume()
    running_cluster.wait_until_ok()
    running_cluster.flush()
