"""A lock on several servers, some of which hang or are gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Redlock
from aiolocks.testing import FaultProxy
from tests.support.inside import link_of, requests_alive, undoing
from tests.support.lateness import SLACK, in_time
from tests.support.leftovers import is_residue
from tests.support.network import until
from tests.support.servers import RedisServer

TTL = 2.0


@pytest.fixture
def five(servers: Callable[..., RedisServer]) -> list[RedisServer]:
    return [servers() for _ in range(5)]


@pytest_asyncio.fixture
async def clients(five: list[RedisServer]) -> AsyncIterator[list[Redis]]:
    made = [Redis.from_url(server.tcp_url) for server in five]
    yield made
    for client in made:
        await client.aclose()


async def keys_held(server: RedisServer) -> list[bytes]:
    """Return the keys of *server* that are no residue."""
    async with Redis.from_url(server.url) as client:
        return [key for key in cast("list[bytes]", await client.keys()) if not is_residue(key)]


async def connected(clients: list[Redis]) -> None:
    """Wait until each server has answered something, so that none is asked for the first time."""
    async with asyncio.timeout(10):
        while not all(link_of(client).round_trip for client in clients):
            await (await Redlock(clients, "connecting", ttl=TTL).acquire()).release()


@pytest_asyncio.fixture
async def proxies(five: list[RedisServer]) -> AsyncIterator[list[FaultProxy]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FaultProxy(port=server.port)) for server in five]


@pytest_asyncio.fixture
async def faulty(proxies: list[FaultProxy]) -> AsyncIterator[list[Redis]]:
    """Clients through the proxies."""
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Redis.from_url(proxy.url)) for proxy in proxies]


DECIDED = SLACK * 0.15
"""Seconds for what a quorum decides in some ms; to wait for the others takes one or more."""

Fell = list[int]


@pytest.fixture(params=["killed", "stopped", "black-holed"])
def bring_down(
    request: pytest.FixtureRequest, five: list[RedisServer], proxies: list[FaultProxy]
) -> Callable[[Fell], None]:
    """Make some of the servers go, one way or another."""

    def go(which: Fell) -> None:
        for at in which:
            if request.param == "killed":
                five[at].kill()
            elif request.param == "stopped":
                five[at].pause()
            else:
                proxies[at].black_hole = True

    return go


@pytest.mark.parametrize("which", [[0, 1], [3, 4]], ids=["the first two", "the last two"])
@pytest.mark.parametrize("how", ["try_acquire", "acquire at once", "acquire in time", "block in time"])
async def test_the_first_caller_to_find_it_held_learns_it_at_once_though_a_minority_has_just_gone(
    five: list[RedisServer], clients: list[Redis], faulty: list[Redis], bring_down: Callable[[Fell], None],
    which: Fell, how: str,
) -> None:  # fmt: skip
    """What is undone need not be confirmed by those who do not answer: a majority is free without them."""
    lock = Redlock(faulty, "orders", ttl=30)
    await connected(faulty)
    timeout = 0.5 if how.endswith("in time") else 0.0
    async with Redlock(clients, "orders", ttl=30):
        while not all([await keys_held(server) for server in five]):  # its block begins when a majority has it
            await asyncio.sleep(0.005)
        bring_down(which)
        async with in_time(timeout + DECIDED):
            if how == "try_acquire":
                assert await asyncio.create_task(lock.try_acquire()) is None
            else:
                with pytest.raises(AcquireTimeoutError):
                    await asyncio.create_task(enter(lock, timeout) if "block" in how else lock.acquire(timeout=timeout))


async def enter(lock: Redlock, timeout: float) -> None:
    async with lock.hold(timeout=timeout):
        pytest.fail("the body ran")


@pytest.mark.parametrize("which", [[0, 1], [3, 4]], ids=["the first two", "the last two"])
@pytest.mark.parametrize("used", [True, False], ids=["used before", "first use"])
async def test_a_caller_that_finds_it_free_gets_and_releases_it_at_once_though_a_minority_has_just_gone(
    faulty: list[Redis], bring_down: Callable[[Fell], None], which: Fell, used: bool
) -> None:
    lock = Redlock(faulty, "orders", ttl=30)
    if used:
        await connected(faulty)
    bring_down(which)
    for _ in range(2):
        async with in_time(DECIDED):
            lease = await lock.try_acquire()
        assert lease is not None
        async with in_time(DECIDED):
            assert await lease.release()
        async with in_time(DECIDED), lock:
            pass


async def test_a_block_is_left_at_once_though_a_minority_has_just_gone(
    faulty: list[Redis], bring_down: Callable[[Fell], None]
) -> None:
    await connected(faulty)
    block = Redlock(faulty, "orders", ttl=30).hold()
    lease = await block.__aenter__()
    await lease.renew()  # all have granted it
    bring_down([0, 4])
    async with in_time(DECIDED):
        await block.__aexit__(None, None, None)


async def test_requests_that_a_hung_server_leaves_are_not_kept(five: list[RedisServer], clients: list[Redis]) -> None:
    """Or thousands of attempts would wait for the end of one to connect, and the garbage collection stop the loop."""
    lock = Redlock(clients, "orders", ttl=TTL)
    await connected(clients)
    five[0].pause()
    async with asyncio.timeout(10):
        while link_of(clients[0]).connected:
            await (await lock.acquire()).release()
    before = requests_alive()
    for _ in range(50):
        await (await lock.acquire()).release()
    await until(lambda: not any(undoing(client) for client in clients[1:]))  # a majority has released it; some are late
    kept = requests_alive() - before
    five[0].resume()
    assert kept < 10


@pytest.mark.parametrize("timeout", [None, 0])
async def test_a_majority_that_is_soon_back_is_asked_again_though_another_server_hangs(
    five: list[RedisServer], clients: list[Redis], timeout: float | None
) -> None:
    five[0].pause()
    for server in five[1:4]:
        server.kill()

    async def bring_back() -> None:
        await asyncio.sleep(0.2)
        for server in five[1:4]:
            server.restart()

    bringing_back = asyncio.create_task(bring_back())
    async with Redlock(clients, "orders", ttl=10).hold(timeout=timeout) as lease:
        assert lease.held
    await bringing_back
    five[0].resume()
