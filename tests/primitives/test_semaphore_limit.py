"""A semaphore's limit: each process declares it at first use, it may change at any time, and no wait is in vain."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from aiolocks import Lease, LimitMismatchError, Semaphore
from aiolocks.events import Event
from aiolocks.testing import FaultProxy
from tests.support.heard import hearing
from tests.support.lateness import SLACK, in_time
from tests.support.primitives import STEADY, enter, queued, until

pytestmark = pytest.mark.usefixtures("quick_sessions")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    ours = [record for record in caplog.records if record.name == "aiolocks"]  # not asyncio's about a slow machine
    return [record.getMessage() for record in ours if record.levelno >= logging.WARNING]


async def test_before_its_first_use_a_semaphore_shows_the_limit_that_it_would_declare(client: Redis) -> None:
    statistics = await Semaphore(client, "scraper", 3).statistics()
    assert (statistics.limit, statistics.permits, statistics.fencing_token) == (3, 0, 0)
    assert await client.keys("*scraper*") == [], "asking is no declaration"


async def test_a_different_declaration_is_in_force_and_one_warning_with_both_limits_and_an_event(
    client: Redis, stranger: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with Semaphore(client, "scraper", 11):
        async with Semaphore(stranger, "scraper", 11):
            assert warnings_of(caplog) == []
        with hearing() as heard:
            for _ in range(3):
                async with Semaphore(stranger, "scraper", 22):
                    assert (await Semaphore(client, "scraper", 11).statistics()).limit == 22
    (warning,) = warnings_of(caplog)
    assert all(text in warning for text in ("scraper", "11", "22"))
    assert heard.of("limit_differs") == [Event("limit_differs", "scraper", "semaphore")]


@pytest.mark.parametrize("who", ["this process", "another"])
async def test_a_higher_limit_is_handed_to_waiters_at_once(client: Redis, stranger: Redis, who: str) -> None:
    semaphore = Semaphore(client, "scraper", 1)
    holder = await semaphore.acquire()
    waiters = [asyncio.create_task(semaphore.acquire()) for _ in range(2)]
    await queued(semaphore, 2)
    async with in_time(SLACK * 0.15, "found by a re-check, not handed over"):
        await Semaphore(client if who == "this process" else stranger, "scraper", 1).resize(3)
        leases = await asyncio.gather(*waiters)
    for lease in (holder, *leases):
        await lease.release()


async def test_a_process_declares_its_limit_once(client: Redis, stranger: Redis) -> None:
    """Or each of its requests would take back what a newer deployment or `resize` has put in force."""
    await enter(Semaphore(client, "scraper", 1))
    await enter(Semaphore(stranger, "scraper", 2))
    async with Semaphore(client, "scraper", 1):
        assert (await Semaphore(client, "scraper", 1).statistics()).limit == 2


async def test_a_semaphore_is_locked_by_the_limit_in_force(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 3)
    async with semaphore:
        await semaphore.resize(1)
        assert await semaphore.locked()
        await semaphore.resize(2)
        assert not await semaphore.locked()


@pytest.mark.parametrize("verb", ["acquire", "try_acquire"])
async def test_more_permits_than_the_limit_are_refused(client: Redis, verb: str) -> None:
    semaphore = Semaphore(client, "scraper", 3)
    ask: Callable[..., asyncio.Future[Lease]] = getattr(semaphore, verb)
    with pytest.raises(LimitMismatchError, match="scraper") as caught:
        await ask(permits=4)
    assert (caught.value.name, caught.value.permits, caught.value.limit) == ("scraper", 4, 3)
    now = await semaphore.statistics()
    assert (now.holders, now.waiting) == (0, 0)


@pytest.mark.parametrize("who", ["this process", "another"])
async def test_a_queued_request_is_refused_if_the_limit_gets_smaller(client: Redis, stranger: Redis, who: str) -> None:
    semaphore = Semaphore(client, "scraper", 3)
    holder = await semaphore.acquire()
    waiter = asyncio.create_task(semaphore.acquire(permits=3))
    await queued(semaphore, 1)
    await Semaphore(client if who == "this process" else stranger, "scraper", 3).resize(2)
    with pytest.raises(LimitMismatchError) as caught:
        await asyncio.wait_for(waiter, 5)
    assert (caught.value.permits, caught.value.limit) == (3, 2)
    assert (await semaphore.statistics()).waiting == 0
    await holder.release()


async def test_a_declaration_lost_on_its_way_is_made_by_the_next_request(proxy: FaultProxy, redis: Redis) -> None:
    await enter(Semaphore(redis, "scraper", 3))
    async with Redis.from_url(proxy.url) as client:

        def swallow(request: bytes) -> None:
            if b"{scraper}" in request:
                proxy.on_request = None
                proxy.black_hole = True
                asyncio.get_running_loop().call_later(0.1, setattr, proxy, "black_hole", False)

        proxy.on_request = swallow
        semaphore = Semaphore(client, "scraper", 5)
        with contextlib.suppress(RedisError):
            await (await semaphore.acquire(timeout=5)).release()
        await (await semaphore.acquire(timeout=5)).release()
        assert (await semaphore.statistics()).limit == 5


async def test_waiters_declare_a_limit_that_the_server_has_forgotten(client: Redis) -> None:
    """Its key was evicted or deleted: their next re-check finds that there is none."""
    semaphore = Semaphore(client, "scraper", 1, ttl=STEADY)
    lease = await semaphore.acquire()
    waiters = [asyncio.create_task(semaphore.acquire(timeout=10)) for _ in range(2)]
    await queued(semaphore, 2)
    await client.delete("aiolocks:semaphore:{scraper}:meta")
    assert await lease.release()
    async with asyncio.timeout(5):
        await (await waiters[0]).release()
        await (await waiters[1]).release()


async def test_waiters_declare_a_forgotten_limit_though_its_holders_go_on(client: Redis) -> None:
    """Nobody knows how many permits these have, so they count as all there are until they end."""
    semaphore = Semaphore(client, "scraper", 3, ttl=STEADY)
    leases = [await semaphore.acquire(permits=2), await semaphore.acquire()]
    waiter = asyncio.create_task(semaphore.acquire(timeout=10))
    await queued(semaphore, 1)
    await client.delete("aiolocks:semaphore:{scraper}:meta")

    async def declared() -> bool:
        return (await semaphore.statistics()).limit == 3

    await until(declared)
    assert await semaphore.try_acquire() is None
    assert await leases[0].release()
    assert not waiter.done()
    assert await leases[1].release()
    async with asyncio.timeout(5):
        await (await waiter).release()


# A limit that is pinned.


async def test_a_pinned_limit_stays_whatever_processes_that_start_later_declare(
    client: Redis, stranger: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await Semaphore(client, "scraper", 5).resize(22, pin=True)
    with hearing() as heard:
        for _ in range(3):
            async with Semaphore(stranger, "scraper", 11):
                assert (await Semaphore(stranger, "scraper", 11).statistics()).limit == 22
    (warning,) = warnings_of(caplog)
    assert all(text in warning for text in ("scraper", "pinned", "11", "22", "ignored"))
    assert heard.of("limit_differs") == [Event("limit_differs", "scraper", "semaphore")]


@pytest.mark.parametrize("pin", [1, "yes"])
async def test_a_pin_is_true_false_or_none(client: Redis, pin: object) -> None:
    with pytest.raises(TypeError, match="pin must be True, False or None"):
        await Semaphore(client, "scraper", 5).resize(2, pin=pin)  # type: ignore[arg-type]


# Without a limit of its own.


async def test_without_a_limit_the_one_in_force_counts(client: Redis, stranger: Redis) -> None:
    async with Semaphore(client, "scraper", 2):
        anyones = Semaphore(stranger, "scraper", None)
        assert (await anyones.statistics()).limit == 2
        async with anyones:
            assert await anyones.locked()
            assert await anyones.try_acquire() is None
        with pytest.raises(LimitMismatchError):
            await anyones.acquire(permits=3)
        assert (await Semaphore(client, "scraper", 2).statistics()).limit == 2


async def test_without_a_limit_it_is_an_error_where_none_was_ever_declared(client: Redis) -> None:
    anyones = Semaphore(client, "scraper", None)
    for ask in (anyones.acquire, anyones.try_acquire, lambda: anyones.acquire(timeout=1)):
        with pytest.raises(LimitMismatchError, match="no process has declared its limit") as caught:
            await ask()
        assert (caught.value.permits, caught.value.limit) == (1, 0)
    assert (await anyones.statistics()).limit == 0
    assert await client.keys("*scraper*") == []


async def test_without_a_limit_it_may_be_resized(client: Redis) -> None:
    anyones = Semaphore(client, "scraper", None)
    await anyones.resize(3, pin=True)
    await enter(anyones.hold(permits=3))
