"""Commands of `aiolocks`: in a thread, while the test's loop keeps the leases that they meet, and in processes."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial

import pytest
import pytest_asyncio

from aiolocks import LockManager
from tests.support.servers import RedisServer
from tests.surface.commands import Capsys, Command, Start, at, running


@pytest.fixture
def command(own_server: RedisServer, capsys: Capsys) -> Command:
    return partial(at, own_server.url, capsys)


@pytest_asyncio.fixture
async def locks(own_server: RedisServer) -> AsyncIterator[LockManager]:
    async with LockManager.from_url(own_server.url, ttl=60) as locks:
        yield locks


@pytest.fixture
def start(server: RedisServer) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(running(server.tcp_url, *arguments))
