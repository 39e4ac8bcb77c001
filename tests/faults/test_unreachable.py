"""When Redis cannot be reached: a holder stops in time, and whoever asks or waits gets redis-py's own exception."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import AcquireTimeoutError, LeaseLostError, Lock, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.lag import SLACK, measured_lag
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]

UNREACHABLE = (RedisConnectionError, RedisTimeoutError)

GRACE = 1.0
"""Seconds that an acquire which failed waits for its undo, beyond its timeout."""


def retrying(proxy: FaultProxy) -> Redis:
    """Return a client through the proxy with redis-py's default retries, which `from_url` does not set."""
    return Redis(host="127.0.0.1", port=proxy.port)


async def outcome_of(asking: Callable[[], Awaitable[object]]) -> tuple[object, float]:
    """Return what came of it, an exception too, and the seconds that it took."""
    begun = time.monotonic()
    result: object
    try:
        result = await asking()
    except Exception as error:
        result = error
    return result, time.monotonic() - begun


async def granted_at(acquirable: Lock | Semaphore) -> float:
    """Wait for it, let it go, and return when it was granted."""
    lease = await acquirable.acquire()
    now = time.monotonic()
    await lease.release()
    return now


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_body_cut_off_from_redis_ends_before_anybody_else_can_have_the_name(
    redis: Redis, proxy: FaultProxy, kind: type[Lock] | type[Semaphore]
) -> None:
    ttl = 1.0

    def make(owner: Redis) -> Lock | Semaphore:
        return Lock(owner, "cut off", ttl=ttl) if kind is Lock else Semaphore(owner, "cut off", 1, ttl=ttl)

    requests: list[float] = []
    ended_at = 0.0
    proxy.on_request = lambda request: requests.append(time.monotonic()) if b"cut off" in request else None
    async with retrying(proxy) as client, measured_lag() as lag:
        with pytest.raises(LeaseLostError):
            async with make(client) as lease:
                contender = asyncio.create_task(granted_at(make(redis)))
                await asyncio.sleep(1.2 * ttl)  # renewed three times by now
                assert lease.held
                proxy.black_hole = True
                last_request = requests[-1]
                try:
                    await asyncio.sleep(3 * ttl)
                finally:
                    ended_at = time.monotonic()
        left_at = time.monotonic()
        taken_at = await contender
        proxy.black_hole = False
        proxy.cut_all()
    print(
        f"{kind.__name__}: the body ended {ended_at - last_request:.3f} s after the newest request that was answered, "
        f"was left {left_at - ended_at:.3f} s later; granted anew after {taken_at - last_request:.3f} s; "
        f"loop lag up to {lag.worst:.3f} s"
    )
    assert len(requests) >= 3
    assert ended_at - lag.worst < last_request + ttl
    assert ended_at < taken_at
    assert taken_at - last_request < ttl + SLACK * 0.2 + lag.worst


@pytest.mark.parametrize("how", ["asked for", "handed over"])
@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_body_whose_grant_was_told_late_ends_before_anybody_else_can_have_the_name(
    redis: Redis, proxy: FaultProxy, kind: type[Lock] | type[Semaphore], how: str
) -> None:
    """Counted from the answer, it would go on while the next one works."""
    ttl, lateness = 1.0, 0.4

    def make(owner: Redis) -> Lock | Semaphore:
        if kind is Lock:
            return Lock(owner, "late", ttl=ttl, renew=False)
        return Semaphore(owner, "late", 1, ttl=ttl, renew=False)

    began_at = ended_at = 0.0
    async with retrying(proxy) as client, Lock(client, "keeps the session"):

        async def work() -> None:
            nonlocal began_at, ended_at
            async with make(client):
                began_at = time.monotonic()
                try:
                    await asyncio.sleep(3 * ttl)
                finally:
                    ended_at = time.monotonic()

        first = await make(redis).acquire() if how == "handed over" else None
        if first is None:
            proxy.delay_replies = lateness
        working = asyncio.create_task(work())
        while first is not None and not (await make(redis).statistics()).waiting:
            await asyncio.sleep(0.01)
        while not (await make(redis).statistics()).holders:
            await asyncio.sleep(0.001)
        contender = asyncio.create_task(granted_at(make(redis)))
        while (await make(redis).statistics()).waiting < (1 if first is None else 2):
            await asyncio.sleep(0.001)
        if first is not None:
            proxy.delay_replies = lateness
            await first.release()
        with pytest.raises(LeaseLostError):
            await working
        taken_at = await contender
        proxy.delay_replies = 0.0
    print(f"{kind.__name__}, {how}: worked {ended_at - began_at:.3f} s, granted anew {taken_at - ended_at:.3f} s later")
    assert 0 < began_at < ended_at < taken_at


async def test_a_client_without_retries_learns_at_once_that_redis_is_down(own_server: RedisServer) -> None:
    own_server.kill()
    async with Redis.from_url(own_server.url, retry=Retry(NoBackoff(), 0)) as client:
        for asking in (
            Lock(client, "down").acquire,
            Lock(client, "down").try_acquire,
            Semaphore(client, "down", 3).acquire,
            Semaphore(client, "down", 3).try_acquire,
            Lock(client, "down").locked,
            Semaphore(client, "down", 3).statistics,
        ):
            result, took = await outcome_of(asking)
            print(f"{asking.__qualname__}: {result!r} after {took:.3f} s")
            assert isinstance(result, UNREACHABLE)
            assert took < 0.5


@pytest.mark.slow
async def test_whoever_asks_an_unreachable_redis_gets_redis_pys_exception_in_time(
    own_server: RedisServer, proxy: FaultProxy
) -> None:
    """Never AcquireTimeoutError and never None: nobody has said that somebody else holds the lock."""
    own_server.kill()
    proxy.black_hole = True
    down = Redis(host="127.0.0.1", port=own_server.port)
    silent, silent_without_retries = retrying(proxy), Redis.from_url(proxy.url)
    cases: dict[str, tuple[Callable[[], Awaitable[object]], float]] = {
        "down, timeout 1": (lambda: Lock(down, "a").acquire(timeout=1), 1.0),
        "down, no timeout": (lambda: Lock(down, "b").acquire(), 10.0),
        "down, try_acquire": (lambda: Lock(down, "c").try_acquire(), 10.0),
        "silent, timeout 1": (lambda: Lock(silent, "a").acquire(timeout=1), 1.0),
        "silent, timeout 3": (lambda: Semaphore(silent, "b", 2).acquire(timeout=3), 3.0),
        "silent, no timeout": (lambda: Lock(silent, "c").acquire(), 10.0),
        "silent, timeout 20": (lambda: Lock(silent, "d").acquire(timeout=20), 10.0),
        "silent, try_acquire": (lambda: Semaphore(silent, "e", 2).try_acquire(), 10.0),
        "silent, no retries": (lambda: Lock(silent_without_retries, "a").acquire(), 10.0),
    }
    async with down, silent, silent_without_retries, measured_lag() as lag:
        outcomes = await asyncio.gather(*(outcome_of(asking) for asking, _ in cases.values()))
        proxy.cut_all()
    late = []
    for (case, (_, bound)), (result, took) in zip(cases.items(), outcomes, strict=True):
        print(f"{case}: {result!r} after {took:.2f} s")
        assert isinstance(result, UNREACHABLE), case
        assert not isinstance(result, AcquireTimeoutError)
        if took > bound + SLACK * 0.1 + lag.worst:
            late.append(f"{case}: {took:.2f} s")
    assert late == []


async def test_a_redis_that_falls_silent_before_the_first_answer_is_not_mistaken_for_a_busy_lock(
    redis: Redis, proxy: FaultProxy
) -> None:
    async with retrying(proxy) as client, Lock(client, "keeps the session", ttl=5), Lock(redis, "busy"):
        proxy.black_hole = True
        for asking in (
            lambda: Lock(client, "busy").acquire(timeout=0.5),
            lambda: Semaphore(client, "busy", 1).acquire(timeout=0.5),
        ):
            result, took = await outcome_of(asking)
            print(f"{result!r} after {took:.3f} s")
            assert isinstance(result, UNREACHABLE)
            assert not isinstance(result, AcquireTimeoutError)
            assert took < 0.5 + GRACE + SLACK * 0.1
        proxy.black_hole = False
        proxy.cut_all()


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_waiter_rides_out_a_server_that_stands_still_for_half_a_ttl(
    own_server: RedisServer, kind: type[Lock] | type[Semaphore]
) -> None:
    ttl = 2.0
    async with Redis.from_url(own_server.url) as holder, Redis.from_url(own_server.url) as client:

        def make(owner: Redis) -> Lock | Semaphore:
            return Lock(owner, "stalled", ttl=ttl) if kind is Lock else Semaphore(owner, "stalled", 1, ttl=ttl)

        async with make(holder) as lease:
            waiter = asyncio.create_task(make(client).acquire())
            while not (await make(holder).statistics()).waiting:
                await asyncio.sleep(0.01)
            own_server.pause()
            await asyncio.sleep(ttl / 2)
            own_server.resume()
            await asyncio.sleep(ttl)
            lease.check()
            assert not waiter.done()
        got = await asyncio.wait_for(waiter, timeout=1)
        assert got.fencing_token > lease.fencing_token
        await got.release()


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_waiter_rides_out_a_restart_that_forgets_everything(
    own_server: RedisServer, kind: type[Lock] | type[Semaphore]
) -> None:
    ttl = 3.0
    async with Redis.from_url(own_server.url) as holder, Redis.from_url(own_server.url) as client:

        def make(owner: Redis) -> Lock | Semaphore:
            return Lock(owner, "restarted", ttl=ttl) if kind is Lock else Semaphore(owner, "restarted", 1, ttl=ttl)

        lease = await make(holder).acquire()
        waiter = asyncio.create_task(make(client).acquire())
        while not (await make(holder).statistics()).waiting:
            await asyncio.sleep(0.01)
        own_server.kill()
        await asyncio.sleep(ttl / 4)
        own_server.restart()
        begun = time.monotonic()
        got = await asyncio.wait_for(waiter, timeout=ttl)
        print(f"{kind.__name__}: granted {time.monotonic() - begun:.3f} s after the restart")
        assert await asyncio.wait_for(lease.wait_lost(), timeout=ttl)
        assert got.fencing_token > lease.fencing_token
        assert await got.release()


@pytest.mark.parametrize("timeout", [None, 30.0])
async def test_a_waiter_gets_redis_pys_exception_when_trouble_outlasts_its_ttl(
    redis: Redis, proxy: FaultProxy, timeout: float | None
) -> None:
    ttl = 1.0
    async with retrying(proxy) as client, Lock(redis, "silence"), measured_lag() as lag:
        waiter = asyncio.create_task(outcome_of(lambda: Lock(client, "silence", ttl=ttl).acquire(timeout=timeout)))
        while not (await Lock(redis, "silence").statistics()).waiting:
            await asyncio.sleep(0.01)
        proxy.black_hole = True
        begun = time.monotonic()
        result, _ = await asyncio.wait_for(waiter, timeout=5 * ttl)
        took = time.monotonic() - begun
        proxy.black_hole = False
        proxy.cut_all()
    print(f"timeout {timeout}: {result!r} after {took:.2f} s of silence")
    assert isinstance(result, UNREACHABLE)
    assert not isinstance(result, AcquireTimeoutError)
    # Silence is noticed after a quarter of a second, and an acquire that failed waits a second for its undo.
    assert 0.5 * ttl < took < ttl + 0.25 + min(GRACE, ttl) + SLACK * 0.1 + lag.worst


@pytest.mark.leaves_residue  # the holder passes the lock on to a waiter that could not say that it has left
async def test_a_timeout_that_ends_while_the_queue_cannot_be_asked_is_a_timeout(
    redis: Redis, proxy: FaultProxy
) -> None:
    """Redis did say that somebody else holds it."""
    async with retrying(proxy) as client, Lock(redis, "silence"):
        lock = Lock(client, "silence", ttl=5)
        waiter = asyncio.create_task(outcome_of(lambda: lock.acquire(timeout=1.5)))
        while not (await Lock(redis, "silence").statistics()).waiting:
            await asyncio.sleep(0.01)
        proxy.black_hole = True
        result, took = await waiter
        proxy.black_hole = False
        proxy.cut_all()
        print(f"{result!r} after {took:.2f} s")
        assert isinstance(result, AcquireTimeoutError)
        assert took < 1.5 + GRACE + SLACK * 0.1


async def test_renewal_and_release_by_hand_raise_when_redis_does_not_confirm(redis: Redis, proxy: FaultProxy) -> None:
    ttl = 3.0
    async with retrying(proxy) as client, measured_lag() as lag:
        lease = await Lock(client, "by hand", ttl=ttl).acquire()
        permits = await Semaphore(client, "by hand", 3, ttl=ttl).acquire(permits=2)
        proxy.black_hole = True
        begun = time.monotonic()
        renewals = await asyncio.gather(outcome_of(lease.renew), outcome_of(permits.renew))
        held = [lease.held, permits.held]
        releases = await asyncio.gather(outcome_of(lease.release), outcome_of(permits.release))
        ended_after = time.monotonic() - begun
        held += [lease.held, permits.held]
        proxy.black_hole = False
        proxy.cut_all()
        async with Lock(redis, "by hand"), Semaphore(redis, "by hand", 3).hold(permits=2):
            free_after = time.monotonic() - begun
    print(f"renewals: {renewals}; releases: {releases}")
    assert all(isinstance(result, UNREACHABLE) for result, _ in (*renewals, *releases))
    assert held == [True, True, False, False]
    print(f"others had both {free_after:.2f} s after the silence began")
    assert ended_after < ttl + SLACK * 0.1 + lag.worst
    assert free_after < ttl + SLACK * 0.2 + lag.worst


@pytest.mark.parametrize("ttl", [1.0, 20.0])
async def test_leaving_a_block_while_redis_is_silent_takes_a_second_at_most_and_warns_once(
    redis: Redis, proxy: FaultProxy, caplog: pytest.LogCaptureFixture, ttl: float
) -> None:
    async with retrying(proxy) as client, measured_lag() as lag:
        async with Lock(client, "leaving", ttl=ttl) as lease:
            proxy.black_hole = True
            bound = min(1.0, lease.remaining())
            left_at = time.monotonic()
        took = time.monotonic() - left_at
        proxy.black_hole = False
        proxy.cut_all()
    print(f"ttl {ttl:g}: leaving took {took:.3f} s; {[record.getMessage() for record in caplog.records]}")
    assert took < bound + SLACK * 0.05 + lag.worst
    assert [(record.name, record.levelname) for record in caplog.records] == [("aiolocks", "WARNING")]
    assert "could not be confirmed" in caplog.text
    assert lease.token not in caplog.text
    await redis.flushall()  # what the outage left behind for up to 20 s
