"""A lock on several servers, some of which hang or are gone."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import AcquireTimeoutError, LeaseLostError, QuorumError, Redlock
from aiolocks.testing import FaultProxy
from tests.support.inside import link_of, requests_alive, undoing
from tests.support.lateness import SLACK, in_time, measured_lag
from tests.support.leftovers import is_residue
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.faults, pytest.mark.asyncio]

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


async def time_to_acquire(lock: Redlock) -> float:
    """Return what an acquisition takes, the median of some."""
    times = []
    for _ in range(40):
        begun = time.perf_counter()
        lease = await lock.acquire(timeout=5)
        times.append(time.perf_counter() - begun)
        await lease.release()
    return statistics.median(times)


async def keys_held(server: RedisServer) -> list[bytes]:
    """Return the keys of *server* that are no residue."""
    async with Redis.from_url(server.url) as client:
        return [key for key in cast("list[bytes]", await client.keys()) if not is_residue(key)]


async def test_a_hung_server_does_not_slow_the_others(five: list[RedisServer], clients: list[Redis]) -> None:
    lock = Redlock(clients, "orders", ttl=TTL)
    await time_to_acquire(lock)  # connected, and warm
    healthy = await time_to_acquire(lock)
    five[2].pause()
    hung = await time_to_acquire(lock)
    five[2].resume()
    print(f"median of 40: {1000 * healthy:.2f} ms with five, {1000 * hung:.2f} ms with one of them stopped")
    assert hung < 1.5 * healthy + 0.001


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
    timeout = 0.2 if how.endswith("in time") else 0.0
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
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        lease = await lock.try_acquire()
        assert lease is not None
        times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        assert await lease.release()
        times.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        async with lock:
            pass
        times.append(time.perf_counter() - begun)
    print("try_acquire, release, block, and once more:", *(f"{1000 * took:.1f}" for took in times), "ms")
    assert max(times) < DECIDED


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


async def test_requests_that_a_hung_server_does_not_answer_are_not_kept(
    five: list[RedisServer], clients: list[Redis]
) -> None:
    """Or thousands of attempts would wait for the end of one to connect, and the garbage collection stop the loop."""
    lock = Redlock(clients, "orders", ttl=TTL)
    await time_to_acquire(lock)
    five[0].pause()
    async with asyncio.timeout(10):
        while link_of(clients[0]).connected:
            await (await lock.acquire()).release()
    before = requests_alive()
    for _ in range(50):
        await (await lock.acquire()).release()
    async with asyncio.timeout(10):
        while any(undoing(client) for client in clients[1:]):
            await asyncio.sleep(0.01)  # a majority has released it; the others are late
    kept = requests_alive() - before
    five[0].resume()
    assert kept < 10


async def test_a_block_is_left_at_once_though_a_server_hangs(five: list[RedisServer], clients: list[Redis]) -> None:
    block = Redlock(clients, "orders", ttl=TTL).hold()
    await block.__aenter__()
    five[0].pause()
    async with in_time(DECIDED):
        await block.__aexit__(None, None, None)
    five[0].resume()


async def test_a_lease_is_renewed_though_two_of_five_servers_are_gone(
    five: list[RedisServer], clients: list[Redis]
) -> None:
    async with Redlock(clients, "orders", ttl=TTL) as lease:
        five[0].kill()
        five[1].pause()
        await asyncio.sleep(2 * TTL)
        assert lease.held
    five[1].resume()


async def test_two_of_five_servers_may_be_gone(five: list[RedisServer], clients: list[Redis]) -> None:
    five[0].kill()
    five[4].kill()
    lock = Redlock(clients, "orders", ttl=TTL)
    async with lock as lease:
        assert lease.held
        assert await lock.locked()
        assert await asyncio.create_task(lock.try_acquire()) is None
    assert not await lock.locked()


async def test_three_of_five_servers_gone_are_an_error_that_names_each(
    five: list[RedisServer], clients: list[Redis]
) -> None:
    for server in five[:3]:
        server.kill()
    lock = Redlock(clients, "orders", ttl=TTL)
    for timeout in (None, 0.31, 0.36, 0.41):  # seldom between two attempts
        with pytest.raises(QuorumError) as caught:
            await lock.acquire(timeout=timeout)
        assert list(caught.value.outcomes) == [f"127.0.0.1:{server.port}" for server in five]
        became = list(caught.value.outcomes.values())
        assert "answered" not in became[:3]
        assert became[3:] == ["answered", "answered"]
        assert all(place in str(caught.value) for place in caught.value.outcomes)
    assert [await keys_held(server) for server in five[3:]] == [[], []]


@pytest.mark.parametrize("timeout", [0, 0.3])
async def test_a_caller_in_a_hurry_hears_of_servers_that_hang(
    five: list[RedisServer], clients: list[Redis], timeout: float
) -> None:
    for server in five[:3]:
        server.pause()
    with pytest.raises(QuorumError, match="no answer in time"):
        await Redlock(clients, "orders", ttl=TTL).acquire(timeout=timeout)
    assert [await keys_held(server) for server in five[3:]] == [[], []]
    for server in five[:3]:
        server.resume()


async def test_a_majority_that_says_busy_is_no_lack_of_answers(five: list[RedisServer], clients: list[Redis]) -> None:
    lock = Redlock(clients, "orders", ttl=TTL)
    async with lock:
        five[0].kill()
        with pytest.raises(AcquireTimeoutError) as caught:
            await asyncio.create_task(lock.acquire(timeout=0.3))
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= TTL


async def test_a_body_is_stopped_when_a_majority_is_gone(five: list[RedisServer], clients: list[Redis]) -> None:
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError):
            async with Redlock(clients, "orders", ttl=TTL):
                begun = time.monotonic()  # after its last request has left
                for server in five[:3]:
                    server.kill()
                await asyncio.sleep(10)
        ended = time.monotonic()
    assert ended - lag.worst < begun + TTL


async def test_a_lease_is_lost_when_a_majority_has_forgotten_it(five: list[RedisServer], clients: list[Redis]) -> None:
    lease = await Redlock(clients, "orders", ttl=TTL).acquire()
    async with asyncio.timeout(10):  # three were enough: one whose vote comes later would grant after it has forgotten
        while not all([await keys_held(server) for server in five]):
            await asyncio.sleep(0.01)
    for server in five[:2]:
        server.flush()
    await asyncio.sleep(TTL)
    assert lease.held
    five[2].flush()
    assert not (await lease.renew() and await lease.renew()), "the first may join a renewal that was on its way"
    assert await lease.release() is False


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


async def test_a_majority_that_comes_back_is_waited_for(five: list[RedisServer], clients: list[Redis]) -> None:
    for server in five[:3]:
        server.kill()
    waiting = asyncio.create_task(Redlock(clients, "orders", ttl=TTL).acquire())
    await asyncio.sleep(0.2)
    await asyncio.to_thread(five[0].restart)
    lease = await waiting
    assert await lease.release()


async def test_a_thread_renews_on_all_servers(clients: list[Redis]) -> None:
    async with Redlock(clients, "orders", ttl=0.6, watchdog="thread") as lease:
        time.sleep(1.5)  # what the thread is for
        assert lease.held


async def test_a_late_grant_of_an_attempt_that_failed_is_undone(five: list[RedisServer], clients: list[Redis]) -> None:
    lock = Redlock(clients, "orders", ttl=TTL)
    async with lock:
        pass  # connected
    for server in five[:3]:
        server.pause()
    with pytest.raises(QuorumError):
        await lock.acquire(timeout=0)
    for server in five[:3]:
        server.resume()
    async with in_time(SLACK * 0.3, "it ended with its TTL"):
        while any([await keys_held(server) for server in five]):
            await asyncio.sleep(0.01)


async def test_an_even_number_of_servers_needs_more_than_half(five: list[RedisServer], clients: list[Redis]) -> None:
    lock = Redlock(clients[:4], "orders", ttl=TTL)
    five[0].kill()
    async with lock as lease:
        assert lease.held
    five[1].kill()
    with pytest.raises(QuorumError):
        await lock.acquire()


async def test_answers_that_come_too_late_for_the_ttl_are_repeated(
    five: list[RedisServer], clients: list[Redis]
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(FaultProxy(port=server.port)) for server in five]
        slow = [await stack.enter_async_context(Redis.from_url(proxy.url)) for proxy in proxies]
        for proxy in proxies:
            proxy.delay_requests = 0.05  # of 0.1 s for a vote; and it takes two questions
        lock = Redlock(slow, "orders", ttl=0.1)
        with pytest.raises(RedisTimeoutError, match="TTL"):
            while True:
                with contextlib.suppress(QuorumError):  # a machine that was busy just then was too late for the vote
                    await lock.acquire(timeout=0)
        waiting = asyncio.create_task(lock.acquire(timeout=10))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        for proxy in proxies:
            proxy.delay_requests = 0.0
        await (await waiting).release()
