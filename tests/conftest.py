"""Fixtures for all tests: a real Redis, a proxy to break it with, and the check that a test leaves nothing behind."""

import asyncio
import functools
import gc
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings
from redis.asyncio import Redis

from aiolocks.testing import FaultProxy
from tests.support import bytecode, clients, in_memory, lateness, parts, seeds, table, virtual
from tests.support.clusters import ClusterSet
from tests.support.inside import forget_declarations
from tests.support.leftovers import Leftovers, empty, tasks_beyond, wait_until_none
from tests.support.servers import RedisServer

# How long examples take to make and to try says more of the machine than of what is tried.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# redis-py parses the metadata of its wheel for each client that is made: a tenth of this suite's processor time.
metadata.version = functools.cache(metadata.version)

in_memory.compile_once()

UNIT = Path(__file__).parent / "unit"


def pytest_addoption(parser: pytest.Parser) -> None:
    parts.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    bytecode.keep()
    bytecode.compile_once(config)
    for plugin in (lateness, parts, seeds, table, virtual):
        config.pluginmanager.register(plugin)
    config.addinivalue_line("markers", "leaves_residue: keys may stay in Redis after this test")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    """Mark each asynchronous test `asyncio`, except in `unit/`: there only tests that bear it run on a real loop."""
    if name.startswith("test_") and inspect.iscoroutinefunction(obj) and UNIT not in collector.path.parents:
        pytest.mark.asyncio(obj)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests: no collection of garbage while they are made, and none within a test looks through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer | ClusterSet]:
    """The one server of the session, or what `clients` says. A test that breaks its server uses `own_server`."""
    with clients.session_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def one_server(server: RedisServer | ClusterSet) -> RedisServer:
    """The session's server, for a test that needs all keys, connections and channels at one."""
    if isinstance(server, ClusterSet):
        pytest.skip("it asks one server for what a Cluster has in several")
    return server


@pytest.fixture
def redis_url(server: RedisServer) -> str:
    """URL of the session's server by its unix socket."""
    return server.url


@pytest.fixture
def tcp_url(server: RedisServer) -> str:
    """URL of the session's server by TCP."""
    return server.tcp_url


@pytest_asyncio.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    """A fresh client of an empty database."""
    async with clients.plain_client(server) as client:
        yield client


@pytest_asyncio.fixture
async def proxy(one_server: RedisServer) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the session's server; `proxy.url` is for the client under test.

    The nodes of a Cluster tell its clients where the others are, past any proxy.
    """
    async with FaultProxy(path=one_server.socket_path) as running:
        yield running


@pytest.fixture
def servers() -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of the test's own; takes the arguments of RedisServer."""
    with ExitStack() as started:
        yield lambda **arguments: started.enter_context(RedisServer(**arguments))


@pytest.fixture
def own_server(servers: Callable[..., RedisServer]) -> RedisServer:
    """A server to be killed, paused and restarted."""
    return servers()


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> None:
    """Empty the server before each test that uses it, and check after each asynchronous one what it left.

    Being autouse, this is set up first and so undone last: when the test's own fixtures have closed their clients.
    """
    forget_declarations()  # as if each test were a process of its own
    uses_server = "server" in request.fixturenames
    if uses_server:
        empty(request.getfixturevalue("server"))
    asynchronous = inspect.iscoroutinefunction(getattr(request.node, "obj", None))
    if asynchronous and (uses_server or "servers" in request.fixturenames):
        request.getfixturevalue("_leftovers_checked")


@pytest_asyncio.fixture
async def _leftovers_checked(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    tasks = asyncio.all_tasks()
    checks: list[Callable[[], list[str]]] = [lambda: tasks_beyond(tasks)]
    if "server" in request.fixturenames:
        leftovers = Leftovers(request.getfixturevalue("server"))
        checks.append(leftovers.new_connections)
        if request.node.get_closest_marker("leaves_residue") is None:
            checks.append(leftovers.lasting_keys)
    said = [*request.node.user_properties]
    yield
    # A late test stopped before its own cleanup. It is tried again, so what it left is no error.
    late = request.node.user_properties != said
    for task in asyncio.all_tasks() - tasks - {asyncio.current_task()} if late else ():
        task.cancel()
    found = await wait_until_none(*checks)
    if found and late:
        request.node.user_properties.append(("left behind", "; ".join(found)))
    elif found:
        pytest.fail("the test left behind:\n  " + "\n  ".join(found), pytrace=False)
