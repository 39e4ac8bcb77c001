"""`LockManager`: shared defaults, one call's own options, and a client that it closes only if it made it."""

import asyncio
import sys
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import Lock, LockManager, Semaphore
from aiolocks._manager import check_manager
from aiolocks.testing import FaultProxy
from tests.support.primitives import queued
from tests.support.servers import RedisServer

pytest_plugins = ["tests.support.table"]


async def open_connections(redis: Redis) -> list[int]:
    return [int(client["id"]) for client in await redis.client_list()]


@pytest.mark.asyncio
async def test_the_first_lock_is_two_lines(redis_url: str, quick_sessions: None) -> None:
    async with LockManager.from_url(redis_url, ttl=10) as locks:
        async with locks.lock("orders:42") as lease:
            assert lease.held


@pytest.mark.asyncio
@pytest.mark.parametrize("scheme", ["unix", "redis"])
async def test_a_url_names_the_server(server: RedisServer, redis: Redis, quick_sessions: None, scheme: str) -> None:
    async with LockManager.from_url(server.url if scheme == "unix" else server.tcp_url) as locks:
        async with locks.lock("orders"):
            assert await Lock(redis, "orders").locked()


@pytest.mark.asyncio
async def test_a_url_may_hold_what_redis_py_understands(one_server: RedisServer, quick_sessions: None) -> None:
    async with LockManager.from_url(f"{one_server.tcp_url}/1?client_name=mine&decode_responses=true") as locks:
        async with locks.lock("orders"):
            assert await locks.client.client_getname() == "mine"


def test_a_tls_url_makes_a_tls_client() -> None:
    client = LockManager.from_url("rediss://localhost:1").client
    assert "SSL" in client.connection_pool.connection_class.__name__


def retries(client: Redis) -> object:
    """Return how often and after which pauses *client* asks again."""
    retry = client.get_retry()
    return None if retry is None else (retry.get_retries(), type(retry._backoff), vars(retry._backoff))


@pytest.mark.parametrize("url", ["redis://localhost:1", "rediss://localhost:1", "unix:///nowhere"])
def test_its_own_client_retries_as_one_does_that_is_made_without_a_url(url: str) -> None:
    """redis-py's own `from_url` makes one that does not."""
    assert retries(Redis()) is not None
    assert retries(LockManager.from_url(url).client) == retries(Redis())
    assert retries(LockManager.from_url(f"{url}?retry_on_timeout=yes").client) == retries(Redis())


def test_a_url_may_say_that_its_client_does_not_retry() -> None:
    assert retries(LockManager.from_url("redis://localhost:1?retry_on_timeout=no").client) is None


@pytest.mark.asyncio
@pytest.mark.parametrize("command", [b"EVALSHA", b"GET"])
async def test_one_lost_answer_is_no_error(proxy: FaultProxy, quick_sessions: None, command: bytes) -> None:
    async with LockManager.from_url(proxy.url, ttl=5) as locks:
        async with locks.lock("orders"):  # both are connected, and the scripts loaded
            await locks.client.get("orders")
        proxy.drop_next_reply(command)
        async with locks.lock("orders") as lease:
            await locks.client.get("orders")
            assert lease.held


@pytest.mark.asyncio
async def test_defaults_are_those_of_every_primitive(quick_sessions: None) -> None:
    async with LockManager.from_url("memory://", ttl=5) as locks:
        async with locks.lock("orders") as lock, locks.semaphore("scraper", 2) as semaphore:
            assert 4 < lock.remaining() < 5
            assert 4 < semaphore.remaining() < 5


@pytest.mark.asyncio
async def test_a_call_overrides_the_defaults(quick_sessions: None) -> None:
    async with LockManager.from_url("memory://", ttl=5) as locks:
        async with locks.lock("orders", ttl=10) as lease:
            assert 9 < lease.remaining() < 10


@pytest.mark.asyncio
async def test_a_call_may_take_a_default_back(quick_sessions: None) -> None:
    async with LockManager.from_url("memory://", acquire_timeout=0.3) as locks:
        async with locks.lock("orders"):
            waiter = asyncio.create_task(locks.lock("orders", acquire_timeout=None).acquire())
            done, _ = await asyncio.wait([waiter], timeout=0.5)
            assert not done
        await (await waiter).release()


@pytest.mark.asyncio
async def test_the_prefix_begins_every_key(redis: Redis, quick_sessions: None) -> None:
    locks = LockManager(redis, prefix="myapp:")
    async with locks.lock("orders"), locks.semaphore("scraper", 2):
        keys = [key async for key in redis.scan_iter()]
    assert keys
    assert all(key.startswith(b"myapp:") for key in keys)


def test_it_makes_the_primitives_that_there_are() -> None:
    locks = LockManager(Redis(port=1))
    lock, semaphore = locks.lock("orders"), locks.semaphore("scraper", 2)
    assert (type(lock), lock.name, type(semaphore), semaphore.name) == (Lock, "orders", Semaphore, "scraper")


def test_it_shows_the_client_that_it_was_given() -> None:
    client = Redis(port=1)
    assert LockManager(client).client is client


@pytest.mark.asyncio
async def test_a_private_memory_is_shared_with_nobody(quick_sessions: None) -> None:
    async with LockManager.from_url("memory://") as one, LockManager.from_url("memory://") as other:
        async with one.lock("orders"):
            assert not await other.lock("orders").locked()


@pytest.mark.asyncio
async def test_a_named_memory_is_shared_in_the_process(quick_sessions: None) -> None:
    async with LockManager.from_url("memory://shared") as one, LockManager.from_url("memory://shared") as same:
        async with LockManager.from_url("memory://another") as other, one.lock("orders"):
            assert await same.lock("orders").locked()
            assert not await other.lock("orders").locked()


@pytest.mark.asyncio
async def test_waiters_of_a_named_memory_are_woken_across_clients(quick_sessions: None) -> None:
    async with LockManager.from_url("memory://shared") as one, LockManager.from_url("memory://shared") as same:
        lease = await one.lock("orders").acquire()
        async with asyncio.TaskGroup() as group:
            waiter = group.create_task(same.lock("orders").acquire(timeout=5))
            await queued(one.lock("orders"), 1)
            await lease.release()
        await waiter.result().release()


@pytest.mark.asyncio
async def test_it_closes_the_client_that_it_made(redis_url: str, redis: Redis) -> None:
    async with LockManager.from_url(redis_url) as locks:
        number = await locks.client.client_id()
        assert number in await open_connections(redis)
    assert number not in await open_connections(redis)


@pytest.mark.asyncio
async def test_closing_it_closes_the_client_that_it_made(redis_url: str, redis: Redis) -> None:
    locks = LockManager.from_url(redis_url)
    number = await locks.client.client_id()
    await locks.aclose()
    assert number not in await open_connections(redis)


@pytest.mark.asyncio
async def test_closing_it_twice_does_no_harm(redis_url: str) -> None:
    locks = LockManager.from_url(redis_url)
    await locks.aclose()
    await locks.aclose()


@pytest.mark.asyncio
async def test_it_does_not_close_a_client_of_yours(redis: Redis) -> None:
    number = await redis.client_id()
    async with LockManager(redis) as locks:
        await locks.lock("orders").locked()
    assert await redis.client_id() == number


@pytest.mark.asyncio
async def test_a_lease_outlives_its_manager(redis_url: str, quick_sessions: None) -> None:
    async with LockManager.from_url(redis_url) as locks:
        lease = await locks.lock("orders").acquire()
    assert lease.held
    assert await lease.release() is True


@pytest.mark.parametrize("url", ["", "localhost", "http://localhost", "redis:localhost", "memory", "memory:/tests"])
def test_a_url_of_another_kind_is_an_error_that_names_the_right_ones(url: str) -> None:
    with pytest.raises(ValueError, match=r"redis://.*rediss://.*unix://.*memory://"):
        LockManager.from_url(url)


@pytest.mark.parametrize("url", [None, b"redis://localhost", Redis(port=1)])
def test_what_is_no_url_is_an_error(url: Any) -> None:
    with pytest.raises(TypeError, match="url"):
        LockManager.from_url(url)


@pytest.mark.parametrize("rest", ["a/b", "a?x=1", "a#b", "me@a"])
def test_a_memory_has_a_name_and_nothing_else(rest: str) -> None:
    with pytest.raises(ValueError, match="memory://"):
        LockManager.from_url(f"memory://{rest}")


@pytest.mark.parametrize("scheme", ["http", "memory", "rediss+tls"])
def test_a_password_in_a_bad_url_is_not_shown(scheme: str) -> None:
    with pytest.raises(ValueError) as caught:
        LockManager.from_url(f"{scheme}://me:secret@host/0?x=1")
    assert "secret" not in str(caught.value)


def test_a_password_is_not_in_its_repr() -> None:
    assert "secret" not in repr(LockManager.from_url("redis://me:secret@localhost:1", ttl=5))


def test_memory_without_its_extra_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fakeredis", None)
    with pytest.raises(ImportError, match=r"extra 'memory' of aiolocks"):
        LockManager.from_url("memory://")


def test_a_bad_default_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="ttl"):
        LockManager(Redis(port=1), ttl=0)


def test_what_a_web_application_keeps_must_be_a_manager() -> None:
    check_manager(LockManager(Redis(port=1)), "app.state.locks")
    with pytest.raises(TypeError, match=r"needs a LockManager in app\.state\.locks.*, not Redis"):
        check_manager(Redis(port=1), "app.state.locks")
