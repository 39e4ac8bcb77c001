"""Commands of `aiolocks`: in a thread, while the test's loop keeps the leases that they meet, and in processes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest
import pytest_asyncio

from aiolocks import LockManager
from aiolocks.cli import main
from tests.support.servers import RedisServer
from tests.surface.commands import Capsys, Command, Said, Start, running


@pytest.fixture
def command(own_server: RedisServer, capsys: Capsys) -> Command:
    """Runs `aiolocks ARGUMENTS` at the test's own server."""

    async def run(*arguments: str) -> Said:
        status = await asyncio.to_thread(main, [*arguments, "--url", own_server.url])
        return Said(status, *capsys.readouterr())

    return run


@pytest_asyncio.fixture
async def locks(own_server: RedisServer) -> AsyncIterator[LockManager]:
    async with LockManager.from_url(own_server.url, ttl=60) as locks:
        yield locks


@pytest.fixture
def start(server: RedisServer) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(running(server.tcp_url, *arguments))
