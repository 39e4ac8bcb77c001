"""Commands of `aiolocks` at the test's own server, while its loop keeps the leases that they show or end."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from aiolocks import LockManager
from aiolocks.cli import main
from tests.support.servers import RedisServer
from tests.surface.commands import Capsys, Command, Said


@pytest.fixture
def command(own_server: RedisServer, capsys: Capsys) -> Command:
    async def run(*arguments: str) -> Said:
        status = await asyncio.to_thread(main, [*arguments, "--url", own_server.url])
        return Said(status, *capsys.readouterr())

    return run


@pytest_asyncio.fixture
async def locks(own_server: RedisServer) -> AsyncIterator[LockManager]:
    async with LockManager.from_url(own_server.url, ttl=60) as locks:
        yield locks
