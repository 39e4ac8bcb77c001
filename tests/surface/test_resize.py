"""`aiolocks resize NAME N`: a semaphore's limit is another for everyone, and may be pinned; it never waits."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from aiolocks import LockManager
from aiolocks.cli import main
from tests.support.primitives import queued
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.asyncio, pytest.mark.leaves_residue]

Capsys = pytest.CaptureFixture[str]


@pytest_asyncio.fixture
async def locks(own_server: RedisServer) -> AsyncIterator[LockManager]:
    async with LockManager.from_url(own_server.url) as locks:
        yield locks


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(main, [*arguments])


async def test_the_limit_is_in_force_at_once(locks: LockManager, own_server: RedisServer, capsys: Capsys) -> None:
    async with locks.semaphore("scraper", 1):
        waiting = asyncio.create_task(locks.semaphore("scraper", 1).acquire(timeout=10))
        await queued(locks.semaphore("scraper", 1), 1)
        assert await run("resize", "scraper", "2", "--url", own_server.url) == 0
        assert await (await waiting).release()
    assert capsys.readouterr().out == "semaphore scraper: the limit is 2; it was 1\n"


async def test_a_pin_is_set_kept_shown_and_gone(locks: LockManager, own_server: RedisServer, capsys: Capsys) -> None:
    shown = []
    for arguments in (("2", "--pin"), ("3",), ("4", "--unpin"), ("5",)):
        assert await run("resize", "scraper", *arguments, "--url", own_server.url, "--json") == 0
        told = json.loads(capsys.readouterr().out)
        shown.append((told["before"], told["limit"], told["pinned"]))
    assert shown == [(None, 2, True), (2, 3, True), (3, 4, False), (4, 5, False)]
    await run("resize", "scraper", "2", "--pin", "--url", own_server.url)
    async with locks.semaphore("scraper", 9):
        capsys.readouterr()
        assert await run("show", "scraper", "--url", own_server.url) == 0
    assert "limit 2 (pinned)" in capsys.readouterr().out


async def test_keys_of_another_prefix_are_others(locks: LockManager, own_server: RedisServer) -> None:
    assert await run("resize", "scraper", "2", "--url", own_server.url, "--prefix", "theirs:", "--kind=semaphore") == 0
    async with locks.semaphore("scraper", 9, prefix="theirs:"), locks.semaphore("scraper", 8):
        limits = [
            (await locks.semaphore("scraper", None, prefix=p).statistics()).limit for p in ("theirs:", "aiolocks:")
        ]
    assert limits == [9, 8]


async def test_a_key_of_another_type_is_one_line(locks: LockManager, own_server: RedisServer, capsys: Capsys) -> None:
    await locks.client.set("aiolocks:semaphore:{scraper}", "text")
    assert await run("resize", "scraper", "2", "--url", own_server.url) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    await locks.client.delete("aiolocks:semaphore:{scraper}")
