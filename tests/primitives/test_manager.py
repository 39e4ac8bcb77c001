"""`LockManager`: shared defaults, one call's own options, and a client that it closes only if it made it."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from aiolocks import Lock, LockManager, Semaphore, with_lock
from aiolocks.testing import FaultProxy
from tests.support.kinds import complete
from tests.support.primitives import STEADY, enter, queued, rows_where, until
from tests.support.servers import RedisServer

pytestmark = pytest.mark.usefixtures("quick_sessions")


async def open_connections(redis: Redis) -> list[int]:
    return [int(client["id"]) for client in await redis.client_list()]


@pytest.mark.parametrize("scheme", ["unix", "redis"])
async def test_a_url_names_the_server(server: RedisServer, redis: Redis, scheme: str) -> None:
    async with LockManager.from_url(server.url if scheme == "unix" else server.tcp_url) as locks:
        async with locks.lock("orders"):
            assert await Lock(redis, "orders").locked()


async def test_a_url_may_hold_what_redis_py_understands(one_server: RedisServer) -> None:
    async with LockManager.from_url(f"{one_server.tcp_url}/1?client_name=mine&decode_responses=true") as locks:
        async with locks.lock("orders"):
            assert await locks.client.client_getname() == "mine"


@pytest.mark.parametrize("url", ["redis://localhost:1", "rediss://localhost:1", "unix:///nowhere"])
async def test_its_own_client_retries_as_one_does_that_is_made_without_a_url_unless_the_url_says_no(url: str) -> None:
    """redis-py's own `from_url` makes one that does not."""
    usual = Redis().get_retry()
    assert usual is not None
    for more, retry in (("", usual), ("?retry_on_timeout=yes", usual), ("?retry_on_timeout=no", None)):
        client = LockManager.from_url(f"{url}{more}").client
        assert client.get_retry() == retry
        assert ("SSL" in client.connection_pool.connection_class.__name__) == url.startswith("rediss")


async def test_defaults_are_those_of_every_primitive_and_a_call_overrides_them() -> None:
    async with LockManager.from_url("memory://", ttl=5, acquire_timeout=0.3) as locks:
        async with locks.lock("orders") as lock, locks.semaphore("scraper", 2) as semaphore:
            assert 4 < lock.remaining() < 5
            assert 4 < semaphore.remaining() < 5
            waiter = asyncio.create_task(locks.lock("orders", ttl=100, acquire_timeout=None).acquire())
            done, _ = await asyncio.wait([waiter], timeout=0.5)
            assert not done
        lease = await waiter
        assert 90 < lease.remaining() < 100
        await lease.release()


async def test_the_prefix_begins_every_key(redis: Redis) -> None:
    locks = LockManager(redis, prefix="myapp:")
    async with locks.lock("orders"), locks.semaphore("scraper", 2):
        keys = [key async for key in redis.scan_iter()]
    assert keys
    assert all(key.startswith(b"myapp:") for key in keys)


async def test_a_named_memory_is_shared_in_the_process_and_a_private_one_with_no_manager() -> None:
    async with LockManager.from_url("memory://shared") as one, LockManager.from_url("memory://shared") as same:
        async with LockManager.from_url("memory://another") as other, one.lock("orders"):
            assert await same.lock("orders").locked()
            assert not await other.lock("orders").locked()
            async with LockManager.from_url("memory://") as private, LockManager.from_url("memory://") as mine:
                async with private.lock("orders"):
                    assert not await mine.lock("orders").locked()


async def test_a_manager_closes_the_client_that_it_made(redis_url: str, redis: Redis) -> None:
    async with LockManager.from_url(redis_url) as locks:
        number = await locks.client.client_id()
        assert number in await open_connections(redis)

    async def closed() -> bool:
        return number not in await open_connections(redis)

    await until(closed)
    await locks.aclose()


def test_the_next_connection_retries_an_import_for_which_no_file_descriptor_was_left(redis_url: str) -> None:
    program = """
import asyncio, sys, aiolocks
class NoDescriptorLeft:
    def find_spec(self, name, *_):
        if name == "encodings.idna":
            sys.meta_path.remove(self)
            raise OSError(24, "Too many open files")
async def main():
    sys.meta_path.insert(0, NoDescriptorLeft())
    async with aiolocks.LockManager.from_url(sys.argv[1]) as locks, locks.lock("orders:42"):
        sys.exit("encodings.idna" not in sys.modules)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program, redis_url], check=True)


# After it was closed.

MADE: dict[str, Callable[[LockManager], Any]] = {
    "lock with a timeout": lambda locks: locks.lock("orders", acquire_timeout=60),
    "upgradeable": lambda locks: locks.rwlock("orders").upgradeable,
    **complete({
        "lock": lambda locks: locks.lock("orders"), "rlock": lambda locks: locks.rlock("orders"),
        "read lock": lambda locks: locks.rwlock("orders").read, "semaphore": lambda locks: locks.semaphore("orders", 1),
        "write lock": lambda locks: locks.rwlock("orders").write,
        "multilock": lambda locks: locks.multilock(["orders", "stock"]),
        "row of a table": lambda locks: locks.hierarchical("orders/42").write,
    }, rows_where(lambda kind: bool(kind.method))),
}  # fmt: skip
"""What is acquired of a manager, by kind."""

every_kind = pytest.mark.parametrize("kind", list(MADE))


async def holding(redis: Redis, kind: str) -> Any:
    """Return a lease in the way of that kind, of another manager."""
    other = LockManager(redis)
    in_the_way = other.rwlock("orders").write if kind in {"read lock", "upgradeable"} else MADE[kind](other)
    return await asyncio.create_task(in_the_way.acquire())  # no task that it starts would wait for itself


@every_kind
async def test_waits_begun_through_it_end_when_it_is_closed(redis: Redis, kind: str) -> None:
    lease = await holding(redis, kind)
    locks = LockManager(redis)
    waiting = [
        asyncio.create_task(enter(MADE[kind](locks))),
        asyncio.create_task(MADE[kind](locks).acquire()),
        asyncio.create_task(MADE[kind](locks).acquire(timeout=60)),
    ]
    await queued(MADE[kind](LockManager(redis)), 3)
    await locks.aclose()
    async with asyncio.timeout(5):
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in ended] == [RuntimeError] * 3
    assert all("closed" in str(error) and "orders" in str(error) for error in ended)
    assert [task.cancelling() for task in waiting] == [0] * 3
    await queued(MADE[kind](LockManager(redis)), 0)
    assert await lease.release()


@every_kind
async def test_later_calls_through_it_are_errors(redis: Redis, kind: str) -> None:
    locks = LockManager(redis)
    made = MADE[kind](locks)
    await enter(made)
    await locks.aclose()
    calls: list[Callable[[Any], Awaitable[Any]]] = [
        lambda lock: lock.acquire(), lambda lock: lock.try_acquire(), lambda lock: lock.hold().__aenter__(),
        lambda lock: lock.locked(), lambda lock: lock.statistics(), lambda lock: lock.holders(),
        lambda lock: lock.waiters(), lambda lock: lock.revoke(),
    ]  # fmt: skip
    for call in calls:
        for each in (made, MADE[kind](locks)):
            with pytest.raises(RuntimeError, match="closed"):
                await call(each)
    with pytest.raises(RuntimeError, match="closed"):
        await enter(made)
    await locks.aclose()  # which cancels no task that was refused
    assert await redis.ping(), "a client of yours is left open"


async def test_what_is_not_acquired_is_refused_too_once_it_is_closed(redis: Redis) -> None:
    locks = LockManager(redis)
    price, scraper = locks.versioned("price"), locks.semaphore("scraper", 2)
    text = await (await scraper.acquire()).hand_off()

    @with_lock(locks, "orders:{number}")
    async def ship(number: int) -> None:
        pass

    await ship(1)
    await locks.aclose()
    for call in (
        price.read(), price.write("7", ""), scraper.resize(3), scraper.pause(1), scraper.resume(), scraper.touch(text),
        scraper.drop(text), ship(2), locks.__aenter__(),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="closed"):
            await call
    assert await Semaphore(redis, "scraper", 2).drop(text)


async def test_an_upgrade_that_waits_ends_too_and_its_lease_stays(redis: Redis) -> None:
    locks = LockManager(redis)
    reading = await LockManager(redis).rwlock("orders").read.acquire()
    lease = await locks.rwlock("orders").upgradeable.acquire()
    waiting = asyncio.create_task(enter(lease.upgrade()))
    await queued(LockManager(redis).rwlock("orders").read, 1)
    await locks.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await waiting
    assert await lease.renew()
    assert await lease.release()
    assert await reading.release()


async def test_other_managers_of_one_client_wait_on(redis: Redis) -> None:
    lease = await Lock(redis, "orders").acquire()
    closed, other = LockManager(redis), LockManager(redis)
    waiting = asyncio.create_task(other.lock("orders").acquire(timeout=30))
    directly = asyncio.create_task(Lock(redis, "orders").acquire(timeout=30))
    await queued(Lock(redis, "orders"), 2)
    await closed.aclose()
    await lease.release()
    await (await waiting).release()
    await (await directly).release()


async def test_leases_of_a_closed_manager_are_renewed_until_owners_release_them(redis_url: str, redis: Redis) -> None:
    locks = LockManager.from_url(redis_url, ttl=STEADY)
    lock = locks.lock("orders")
    async with lock as lease:
        by_hand = await locks.lock("stock").acquire()
        dropped = await locks.lock("stock 2").acquire()
        await locks.aclose()
        await asyncio.sleep(1.2 * STEADY)
        assert lease.held
        assert by_hand.held
        assert await Lock(redis, "orders").locked()
    assert not await Lock(redis, "orders").locked()
    assert await by_hand.release()
    await locks.lock("stock 2").release()
    assert not dropped.held


async def test_new_callers_of_a_closed_manager_open_no_connection(redis_url: str, redis: Redis) -> None:
    locks = LockManager.from_url(redis_url)
    await enter(locks.lock("orders"))
    await locks.aclose()
    before = set(await open_connections(redis))
    with pytest.raises(RuntimeError, match="closed"):
        await locks.lock("orders").acquire()
    assert set(await open_connections(redis)) <= before


async def test_a_cancellation_beside_the_close_stays_a_cancellation(redis: Redis) -> None:
    lease = await Lock(redis, "orders").acquire()
    for first in ("close", "cancel"):
        locks = LockManager(redis)
        waiting = asyncio.create_task(locks.lock("orders").acquire())
        await queued(Lock(redis, "orders"), 1)
        if first == "cancel":
            waiting.cancel()
        await locks.aclose()
        if first == "close":
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert await lease.release()


async def test_a_wait_in_a_shielded_scope_ends_and_leaves_the_scope_whole(redis: Redis) -> None:
    lease = await Lock(redis, "orders").acquire()
    locks = LockManager(redis)
    after = []

    async def wait() -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(60) as scope:
            with pytest.raises(RuntimeError, match="closed"):
                await locks.lock("orders").acquire()
            await anyio.sleep(0.01)
            after.append(scope.cancelled_caught)

    waiting = asyncio.create_task(wait())
    await queued(Lock(redis, "orders"), 1)
    await locks.aclose()
    await waiting
    assert after == [False]
    assert await lease.release()


async def test_a_turn_that_comes_as_it_is_closed_is_passed_on(redis: Redis) -> None:
    for _ in range(20):
        lease = await Lock(redis, "orders").acquire()
        locks = LockManager(redis)
        waiting = asyncio.create_task(locks.lock("orders").acquire())
        await queued(Lock(redis, "orders"), 1)
        await asyncio.gather(lease.release(), locks.aclose())
        (ended,) = await asyncio.gather(waiting, return_exceptions=True)
        if not isinstance(ended, RuntimeError):
            await ended.release()  # type: ignore[union-attr]  # it was granted before
        free = await Lock(redis, "orders").acquire(timeout=2)
        assert await free.release()


@pytest.mark.rest
@pytest.mark.redis
async def test_a_wait_for_a_silent_server_ends_when_it_is_closed(proxy: FaultProxy) -> None:
    locks = LockManager.from_url(proxy.url)
    await enter(locks.lock("orders"))
    proxy.black_hole = True
    waiting = asyncio.create_task(locks.lock("orders").acquire())
    await asyncio.sleep(0.1)
    async with asyncio.timeout(3):
        await locks.aclose()
        with pytest.raises(RuntimeError, match="closed"):
            await waiting


async def test_its_repr_shows_the_server_and_what_its_holders_are_called_and_no_password() -> None:
    locks = LockManager.from_url("redis://me:secret@localhost:1/3", ttl=5, holder="billing")
    assert repr(locks) == "<LockManager localhost:1/3 holder='billing' ttl=5>"
    assert repr(LockManager(Redis())) == "<LockManager localhost:6379>"
    assert "db.sock" in repr(LockManager.from_url("unix:///tmp/db.sock"))
    assert repr(LockManager.from_url("memory://tests")).startswith("<LockManager memory://")
    for url in (
        "redis+sentinel://me:secret@localhost:1/main/0?sentinel_username=you&sentinel_password=secret",
        "redis+cluster://me:secret@localhost:1",
        "rediss://:secret@localhost:1",
    ):
        shown = repr(LockManager.from_url(url))
        assert ":1" in shown
        assert "secret" not in shown
    await locks.aclose()
    assert "closed" in repr(locks)


@pytest.mark.parametrize(("urls", "error", "says"), [
    (
        ["", "localhost", "http://me:secret@a", "redis:localhost", "memory", "rediss+tls://:secret@a"],
        ValueError, r"redis://.*rediss://.*unix://.*memory://",
    ),
    ([f"memory://{rest}" for rest in ("a/b", "a?x=1", "a#b", "me:secret@a/0?x=1")], ValueError, "memory://"),
    ([None, b"redis://localhost", Redis(port=1)], TypeError, "url"),
])  # fmt: skip
async def test_a_url_of_another_kind_is_an_error_that_names_the_right_ones_and_no_password(
    urls: list[Any], error: type[Exception], says: str
) -> None:
    for url in urls:
        with pytest.raises(error, match=says) as caught:
            LockManager.from_url(url)
        assert "secret" not in str(caught.value)


async def test_memory_without_its_extra_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fakeredis", None)
    with pytest.raises(ImportError, match=r"extra 'memory' of aiolocks"):
        LockManager.from_url("memory://")


@pytest.mark.redis
@pytest.mark.leaves_residue
async def test_a_revoke_that_waits_ends_when_its_manager_is_closed(redis: Redis) -> None:
    lease = await Lock(redis, "orders:42", renew=False).acquire()
    locks = LockManager(redis)
    revoking = asyncio.ensure_future(locks.lock("orders:42").revoke())

    async def revoked() -> bool:
        value: Any = await redis.get("aiolocks:lock:{orders:42}")
        return bool(value.endswith(b" R"))

    await until(revoked)
    await locks.aclose()
    with pytest.raises(RuntimeError, match="its LockManager is closed"):
        await revoking
    await lease.release()


@pytest.mark.redis
@pytest.mark.leaves_residue
async def test_a_wait_that_is_destroyed_in_another_thread_is_undone(redis: Redis) -> None:
    """As when a coroutine is collected as garbage: no loop runs there."""
    locks = LockManager(redis)
    lease = await Lock(redis, "orders:42").acquire()
    waiting = locks.lock("orders:42").acquire()
    assert waiting.send(None) is not None
    await queued(Lock(redis, "orders:42"), 1)
    await asyncio.to_thread(waiting.close)
    await queued(Lock(redis, "orders:42"), 0)
    await lease.release()
    await locks.aclose()
