"""Who holds and who waits, of every primitive and on every server."""

import asyncio
import os
import socket
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import HierarchicalLock, Lock, LockManager, Redlock, RLock, RWLock, Semaphore
from tests.support.primitives import STEADY, Make, as_a_stranger, cancelled, queued, until

LONGEST_TEXT = 100
"""Characters of a host's, a holder's and a task's name that are shown."""

MOST_NAMED = 500
"""Leases, and waiters, of a session whose holders have names."""

HERE = (socket.gethostname()[:LONGEST_TEXT], os.getpid())


@pytest.mark.real_time
async def test_holders_lists_host_and_pid_from_the_first_moment(make: Make) -> None:
    lock: Any = make(ttl=5)
    assert (await lock.holders(), await lock.waiters()) == ((), ())
    async with lock as lease:
        found = await lock.holders()
        assert found
        for holder in found:
            assert (holder.host, holder.pid) == HERE
            assert 0 < holder.remaining <= 5
            assert holder.permits == 1
            assert (holder.holder, holder.task) == (None, None), "short leases do not write it"
            assert holder.since is not None
            ahead = holder.since - datetime.now(UTC)  # other tests may have moved on the time of in-memory servers
            assert -timedelta(seconds=60) < ahead < timedelta(hours=1)
        assert lease.fencing_token in [holder.fencing_token for holder in found]
        assert lease.token not in repr(found)
    assert await lock.holders() == ()


async def test_waiters_are_listed_in_the_order_of_their_requests(make: Make) -> None:
    lock: Any = make(ttl=5)
    if isinstance(lock, Redlock):
        assert await lock.waiters() == ()
        return
    leases = await make.fill()
    waiting: list[Any] = []
    for count in (1, 2):
        waiting.append(as_a_stranger(make(ttl=5).acquire()))
        await queued(make.beside(), count)
    first, second = await lock.waiters()
    assert (first.host, first.pid) == (second.host, second.pid) == HERE
    assert first.since is not None
    assert second.since is not None
    assert first.since < second.since
    assert 0 <= second.waiting <= first.waiting < 60
    await cancelled(*waiting)
    for lease in leases:
        await lease.release()
    assert await lock.waiters() == ()


def of_a_manager(client: Redis, **options: Any) -> list[Any]:
    """Return one of each kind that a manager makes."""
    locks = LockManager(client, holder="billing", **options)
    tree = locks.hierarchical("shop/orders")
    several = [locks.rlock("r"), locks.multilock(["x", "y"]), locks.rwlock("w").write, tree.write]
    return [locks.lock("l"), locks.semaphore("s", 3), *several]


@pytest.mark.rest
async def test_what_lasts_is_called_by_its_manager_and_its_task(client: Redis) -> None:
    one = asyncio.current_task()
    assert one is not None
    one.set_name("nightly report")
    for lock in of_a_manager(client, ttl=STEADY):
        async with lock:
            assert {holder.holder for holder in await lock.holders()} == {None}

            async def told(lock: Any = lock) -> bool:
                return {holder.holder for holder in await lock.holders()} == {"billing"}

            await until(told)
            tasks = {holder.task for holder in await lock.holders()}
            assert tasks == ({"nightly report"} if not isinstance(lock, RLock) else {None}), "others share its lease"


async def test_a_waiter_that_waits_for_long_is_called_so_too(client: Redis) -> None:
    lock = LockManager(client, holder="billing", ttl=1).lock("orders")
    async with lock:
        waiting = as_a_stranger(lock.acquire())
        waiting.set_name("cleanup")

        async def told() -> bool:
            return [(waiter.holder, waiter.task) for waiter in await lock.waiters()] == [("billing", "cleanup")]

        await until(told)
    await (await waiting).release()


@pytest.mark.parametrize("holder", [3, b"billing"])
async def test_a_manager_is_called_by_a_text(client: Redis, holder: Any) -> None:
    with pytest.raises(TypeError, match="holder must be a str"):
        LockManager(client, holder=holder)
    with pytest.raises(ValueError, match="holder must not be empty"):
        LockManager(client, holder=" ")


async def test_modes_are_told_by_the_names_that_users_know(client: Redis) -> None:
    rw, path = RWLock(client, "orders"), HierarchicalLock(client, "shop/orders")
    leases = [await as_a_stranger(way.acquire()) for way in (rw.read, rw.upgradeable)]
    assert sorted(str(holder.mode) for holder in await rw.write.holders()) == ["read", "upgradeable"]
    for lease in leases:
        await lease.release()
    async with rw.write:
        assert [holder.mode for holder in await rw.read.holders()] == ["write"]
    async with path.write:
        assert [holder.mode for holder in await path.read.holders()] == ["write"]
        assert [holder.mode for holder in await HierarchicalLock(client, "shop").read.holders()] == ["intent-write"]
        below = HierarchicalLock(client, "shop/orders/42")
        assert [holder.mode for holder in await below.read.holders()] == ["write"], "all below it is held too"
        beside = HierarchicalLock(client, "shop/bills")
        assert await beside.read.holders() == ()


async def test_permits_are_told(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 5)
    async with semaphore.hold(permits=4):
        waiting = as_a_stranger(semaphore.acquire(permits=2))
        await queued(semaphore, 1)
        assert [holder.permits for holder in await semaphore.holders()] == [4]
        assert [waiter.permits for waiter in await semaphore.waiters()] == [2]
    await (await waiting).release()


@pytest.mark.rest
async def test_more_holders_and_waiters_than_one_script_tells_of_are_told_in_parts(client: Redis) -> None:
    semaphore = Semaphore(client, "scraper", 1100, ttl=60)
    leases = await asyncio.gather(*(semaphore.acquire() for _ in range(1100)))
    waiting = [as_a_stranger(semaphore.acquire()) for _ in range(1100)]
    await queued(semaphore, 1100)
    held, awaited = await semaphore.holders(), await semaphore.waiters()
    assert sorted(holder.fencing_token for holder in held) == sorted(lease.fencing_token for lease in leases)
    assert len(awaited) == 1100
    assert {(one.host, one.pid) for one in held} | {(one.host, one.pid) for one in awaited} == {HERE}
    await cancelled(*waiting)
    await asyncio.gather(*(lease.release() for lease in leases))


async def session_keys(client: Redis) -> list[bytes]:
    return [key.encode() if isinstance(key, str) else key async for key in client.scan_iter("aiolocks:session:*")]


@pytest.mark.rest
@pytest.mark.redis
async def test_thousands_of_leases_leave_one_small_key_that_ends(client: Redis) -> None:
    for batch in range(25):  # not all at once, as a server in memory takes long for each
        locks = [Lock(client, f"orders:{batch}:{number}", ttl=2) for number in range(100)]
        for lease in await asyncio.gather(*(lock.acquire() for lock in locks)):
            await lease.release()
    (key,) = await session_keys(client)
    assert await client.hlen(key) <= 2 + MOST_NAMED
    assert 0 < await client.pttl(key) <= 2667, "a third of a TTL longer than any lease"

    async def only_of_those_that_last() -> bool:
        return set(await client.hkeys(key)) <= {b"host", b"pid"}

    async with Lock(client, "orders", ttl=2):
        await until(only_of_those_that_last)


@pytest.mark.redis
async def test_names_are_cut_and_no_secret_is_written(client: Redis) -> None:
    locks = LockManager(client, holder="b" * 1000 + "\0", ttl=0.5)
    async with locks.lock("orders") as lease:
        current = asyncio.current_task()
        assert current is not None
        current.set_name("t" * 1000)
        (key,) = await session_keys(client)

        async def named() -> bool:
            return bool(await client.hlen(key) == 3)

        await until(named)
        (holder,) = await locks.lock("orders").holders()
        assert (holder.holder, holder.task) == ("b" * LONGEST_TEXT, "t" * LONGEST_TEXT)
        said = repr(await client.hgetall(key))
        assert lease.token[11:23] not in said
