"""The trouble that tests make: a clock that they move, leases that they lose, outages of the server in memory."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError, LockManager, sync
from aiolocks.testing import Clock, lose, lose_name, outage
from tests.support.heard import hearing
from tests.support.network import until
from tests.support.primitives import as_a_stranger, queued

pytest_plugins = ["aiolocks.testing.plugin"]


async def test_leases_and_waiters_follow_the_clock(locks: LockManager, clock: Clock) -> None:
    await locks.lock("orders:7", ttl=10, renew=False).acquire()
    async with locks.lock("orders:42", ttl=10) as renewed:
        await clock.advance(11)
        assert not await locks.lock("orders:7").locked(), "the server follows too"
        await clock.advance(600)
        assert renewed.held
        assert renewed.remaining() > 5
    lease = await locks.lock("orders:42", ttl=10, renew=False).acquire()
    patient = asyncio.create_task(locks.lock("orders:42").acquire())
    hasty = asyncio.create_task(locks.lock("orders:42").acquire(timeout=5))
    await clock.advance(6)
    assert not patient.done()
    with pytest.raises(AcquireTimeoutError):
        await hasty
    await clock.advance(2)
    assert lease.held
    await clock.advance(3)
    assert lease.lost
    await clock.advance(1)
    assert (await patient).fencing_token > lease.fencing_token


async def test_a_clock_goes_on_only_moves_no_other_server_s_time_and_is_made_before_the_first_lock(
    locks: LockManager, clock: Clock
) -> None:
    with pytest.raises(ValueError, match="never goes back"):
        await clock.advance(-1)
    with pytest.raises(TypeError, match="memory://"):
        Clock(LockManager.from_url("redis://localhost"))
    async with locks.lock("orders:42"):
        with pytest.raises(RuntimeError, match="before the first lock"):
            Clock(locks)


async def test_the_next_waiter_has_the_name_of_a_lost_lease(locks: LockManager) -> None:
    with pytest.raises(LeaseLostError, match="the test says so"):
        async with locks.lock("orders:42"):
            waiter = as_a_stranger(locks.lock("orders:42").acquire())
            await queued(locks.lock("orders:42"), 1)
            lose_name(locks, "orders:42", "the test says so")
            await asyncio.sleep(3600)
    await (await waiter).release()


HELD: dict[str, Callable[[LockManager], Any]] = {
    "a lock": lambda locks: locks.lock("orders:42"), "not renewed": lambda locks: locks.lock("orders:42", renew=False),
    "renewed by a thread": lambda locks: locks.lock("orders:42", watchdog="thread"),
    "a reentrant lock": lambda locks: locks.rlock("orders:42"),
    "a reader": lambda locks: locks.rwlock("orders:42").read, "a permit": lambda locks: locks.semaphore("orders:42", 3),
    "one of several names": lambda locks: locks.multilock(["orders:42", "orders:43"]),
    "a path": lambda locks: locks.hierarchical("orders:42").write,
    "a leader": lambda locks: locks.election("orders:42")._primitive,
    "another prefix": lambda locks: locks.lock("orders:42", prefix="mine:"),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(HELD))
async def test_of_every_kind_blocks_and_leases_by_hand_are_lost(kind: str, locks: LockManager) -> None:
    held = HELD[kind](locks)
    async with locks.lock("orders:7") as other:
        for lost in (lose, lambda lease: lose_name(locks, "orders:42")):
            with pytest.raises(LeaseLostError, match="by a test"):
                async with held as lease:
                    lost(lease)
                    await asyncio.sleep(3600)
            lease = await held.acquire(timeout=1)
            lost(lease)
            assert lease.lost
            await (await held.acquire(timeout=1)).release()
        assert other.held


async def test_every_hold_of_a_name_is_lost_through_whichever_manager(locks: LockManager) -> None:
    mine, others = LockManager.from_url("memory://shop"), LockManager.from_url("memory://shop")
    leases = [await each.semaphore("scraper", 5).acquire() for each in (mine, others, others)]
    elsewhere = await locks.semaphore("scraper", 5).acquire()
    lose_name(mine, "scraper")
    assert [lease.lost for lease in leases] == [True] * 3
    assert elsewhere.held
    await elsewhere.release()
    rlock = locks.rlock("orders:42")
    leases = [await rlock.acquire() for _ in range(3)]
    lose_name(locks, "orders:42")
    assert all(lease.lost for lease in leases)
    assert not await rlock.locked()


async def test_a_name_that_is_not_held_cannot_be_lost(locks: LockManager) -> None:
    with pytest.raises(RuntimeError, match=r"no lease of 'orders:42'.*none at all"):
        lose_name(locks, "orders:42")
    lease = await locks.lock("orders:42").acquire()
    with pytest.raises(RuntimeError, match=r"no lease of 'order:42'.*'orders:42'"):
        lose_name(locks, "order:42")
    await lease.release()
    with pytest.raises(RuntimeError, match="none at all"):
        lose_name(locks, "orders:42")
    with pytest.raises(TypeError, match="locks must be a LockManager"):
        lose_name(locks.client, "orders:42")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lease must be a Lease"):
        lose("orders:42")  # type: ignore[arg-type]


async def test_a_name_is_lost_on_a_real_server_too(redis_server: str) -> None:
    async with LockManager.from_url(redis_server) as locks:
        lease = await locks.lock("orders:42").acquire()
        lose_name(locks, "orders:42")
        assert lease.lost
        await (await locks.lock("orders:42").acquire(timeout=5)).release()


async def test_threads_lose_leases_too() -> None:
    def lose_twice() -> None:
        with sync.LockManager.from_url("memory://") as locks:
            for lost in (lose, lambda _: lose_name(locks, "orders:42")):
                with pytest.raises(LeaseLostError, match="by a test"), locks.lock("orders:42") as lease:
                    lost(lease)
                    lease.check()

    await asyncio.to_thread(lose_twice)


CALLS: dict[str, Callable[[LockManager], Awaitable[object]]] = {
    "try_acquire": lambda locks: locks.lock("orders:7").try_acquire(),
    "acquire": lambda locks: locks.lock("orders:7").acquire(),
    "acquire in time": lambda locks: locks.semaphore("orders:7", 2).acquire(timeout=1),
    "holders": lambda locks: locks.lock("orders:7").holders(),
    "a command": lambda locks: locks.client.get("orders:7"),
    "a script": lambda locks: locks.client.eval("return 1", 0),
    "a versioned value": lambda locks: locks.versioned("orders:7").read(),
}


@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.parametrize("used", [True, False], ids=["connected", "not yet connected"])
async def test_every_call_fails_as_long_as_the_outage_lasts(call: str, used: bool, locks: LockManager) -> None:
    async def succeeds() -> None:
        got = await CALLS[call](locks)
        if isinstance(got, Lease):
            await got.release()

    if used:
        await succeeds()
    with outage(locks):
        for _ in range(2):
            with pytest.raises(RedisConnectionError):
                await CALLS[call](locks)
    await succeeds()


async def test_a_holder_works_through_an_outage_shorter_than_its_lease(locks: LockManager, clock: Clock) -> None:
    with hearing() as heard:
        async with locks.lock("orders:42", ttl=10) as lease:
            with outage(locks):
                await clock.advance(8)
                assert lease.held
            await clock.advance(60)
            assert lease.held
    told = heard.kinds("renewal_failed")
    assert told[:3] == ["acquired", "endangered", "renewed"]
    assert set(told[3:]) == {"renewed", "released"}


async def test_in_a_longer_one_a_holder_is_stopped_and_the_waiter_goes_on(locks: LockManager, clock: Clock) -> None:
    async def work() -> None:
        async with locks.lock("orders:42", ttl=10):
            await asyncio.sleep(3600)

    working = asyncio.create_task(work())
    await clock.advance(1)
    waiter = asyncio.create_task(locks.lock("orders:42", ttl=30).acquire())
    await clock.advance(1)
    with outage(locks):
        await clock.advance(9)
        with pytest.raises(LeaseLostError, match="not renewed within its 10 s TTL"):
            await working
        await clock.advance(10)
        assert not waiter.done()
    await clock.advance(1)
    await (await waiter).release()


async def test_a_waiter_gives_up_when_its_time_ends_or_the_outage_lasts_a_ttl(locks: LockManager, clock: Clock) -> None:
    held = await locks.lock("orders:42", ttl=300).acquire()
    hasty = asyncio.create_task(locks.lock("orders:42", ttl=20).acquire(timeout=10))
    patient = asyncio.create_task(locks.lock("orders:42", ttl=20).acquire())
    await clock.advance(1)
    with outage(locks):
        await clock.advance(12)
        with pytest.raises((AcquireTimeoutError, RedisConnectionError)):
            await hasty
        assert not patient.done()
        await clock.advance(12)
        with pytest.raises(RedisConnectionError):
            await patient
    await held.release()


async def test_what_was_released_meanwhile_is_free_when_the_outage_is_over(locks: LockManager, clock: Clock) -> None:
    async with locks.lock("orders:42", ttl=60):
        outer = outage(locks)
        outer.__enter__()
    waiter = asyncio.create_task(locks.lock("orders:42").try_acquire())
    with pytest.raises(RedisConnectionError):
        await waiter
    outer.__exit__(None, None, None)
    await clock.advance(2)
    lease = await locks.lock("orders:42").try_acquire()
    assert lease is not None
    await lease.release()


async def test_a_call_on_its_way_is_not_answered(locks: LockManager) -> None:
    asking = asyncio.create_task(locks.lock("orders:42").try_acquire())
    await asyncio.sleep(0)
    with outage(locks), pytest.raises(RedisConnectionError):
        await asking


async def test_an_outage_in_an_outage_ends_with_the_outer_one_and_is_of_one_server(locks: LockManager) -> None:
    shop = [LockManager.from_url("memory://an-outage") for _ in range(2)]
    outer, inner = outage(shop[0]), outage(shop[1])
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    for manager in shop:
        with pytest.raises(RedisConnectionError):
            await manager.client.ping()
    await locks.client.ping()
    inner.__exit__(None, None, None)
    await shop[0].client.ping()


async def test_an_outage_is_of_the_server_in_memory_alone() -> None:
    elsewhere = LockManager.from_url("redis://localhost")
    with pytest.raises(TypeError, match=r"from_url\(\"memory://\"\)"), outage(elsewhere):
        pass
    with pytest.raises(TypeError, match="locks must be a LockManager"), outage("memory://"):  # type: ignore[arg-type]
        pass


async def test_threads_meet_an_outage_and_ride_it_out() -> None:
    def ride_out() -> None:
        with sync.LockManager.from_url("memory://", ttl=5) as locks:
            with locks.lock("orders:42") as lease:
                waiter = threading.Thread(target=lambda: locks.lock("orders:42").acquire().release())
                waiter.start()
                while not locks.lock("orders:42").waiters():
                    pass
                with outage(locks), pytest.raises(RedisConnectionError):
                    locks.lock("orders:7").try_acquire()
                assert lease.held
            waiter.join(10)
            assert not waiter.is_alive()

    await asyncio.to_thread(ride_out)


async def test_the_thread_that_renews_meets_the_outage_too() -> None:
    locks = LockManager.from_url("memory://", ttl=1.5, watchdog="thread")
    with hearing() as heard:
        async with locks.lock("orders:42"):
            with outage(locks):
                await until(lambda: bool(heard.of("endangered")))
            await until(lambda: bool(heard.of("renewed")))
    assert heard.kinds("renewal_failed", "renewed") == ["acquired", "endangered", "released"]
