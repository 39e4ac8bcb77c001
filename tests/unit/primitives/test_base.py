"""What every primitive knows of its client: which server is behind it, and what it is called."""

import asyncio

import pytest
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis

from aiolocks import Lock, MultiLock, RLock, RWLock, Semaphore
from aiolocks._redis.clients import place_of, server_of
from aiolocks._redis.urls import memory_client
from aiolocks.compat import RedisLock
from tests.support.answering import Answering
from tests.support.primitives import EVERY_ROW


def test_a_server_is_called_by_its_address_and_by_nothing_secret() -> None:
    for url, place in [
        ("redis://", "localhost:6379"), ("redis://10.0.0.1", "10.0.0.1:6379"), ("redis://:7000", "localhost:7000"),
        ("redis://admin:secret@10.0.0.1:7000/3", "10.0.0.1:7000/3"),
        ("rediss://admin:secret@10.0.0.1:7000/0", "10.0.0.1:7000"),
        ("unix://admin:secret@/run/redis.sock", "/run/redis.sock"),
        ("unix:///run/redis.sock?db=2", "/run/redis.sock/2"),
    ]:  # fmt: skip
        assert place_of(ConnectionPool.from_url(url)) == place


def test_pools_of_one_server_and_database_are_known_as_such() -> None:
    same = [
        ConnectionPool.from_url("redis://10.0.0.1:7000/3"),
        ConnectionPool.from_url("redis://admin:secret@10.0.0.1:7000/3"),
        BlockingConnectionPool(host="10.0.0.1", port=7000, db=3),
    ]
    defaults = [ConnectionPool(), ConnectionPool.from_url("redis://localhost"), ConnectionPool(port=6379, db=0)]
    assert [len({server_of(pool) for pool in pools}) for pools in (same, defaults)] == [1, 1]
    in_memory = [memory_client(url).connection_pool for url in ("memory://a", "memory://a", "memory://b", "memory://")]
    assert [server_of(pool) == server_of(in_memory[0]) for pool in in_memory] == [True, True, False, False]
    others = ["redis://10.0.0.1:7000/4", "redis://10.0.0.1:7001/3", "redis://10.0.0.2:7000/3", "unix:///run/redis.sock"]
    assert len({server_of(pool) for pool in [same[0], *map(ConnectionPool.from_url, others)]}) == 5


def test_a_primitive_shows_its_name() -> None:
    client = Redis(port=1)
    assert repr(Lock(client, "orders:42")) == "<Lock 'orders:42'>"
    assert "a" in repr(MultiLock(client, ["a", "b"]))
    semaphore = Semaphore(client, "scraper", 10)
    assert repr(semaphore) == "<Semaphore 'scraper' limit=10>"
    assert repr(semaphore.hold(permits=3)) == "<Hold of <Semaphore 'scraper' limit=10>>"
    assert repr(RLock(client, "orders:42").hold()) == "<Hold of <RLock 'orders:42'>>"
    assert repr(RedisLock(client, "orders:42", timeout=5)) == "<RedisLock 'orders:42'>"
    acquiring = Lock(client, "orders:42").acquire(timeout=5)
    assert repr(acquiring) == "<Acquiring of <Lock 'orders:42'>>"
    acquiring.close()


def test_kind_and_family_are_no_public_names() -> None:
    client = Redis(port=1)
    for each in [row.make(client, "a") for row in EVERY_ROW]:
        for name in ("kind", "family"):
            assert not hasattr(each, name), each
            assert name not in dir(each)


async def test_statistics_count_all_waiters_and_locked_of_a_mode_counts_none() -> None:
    """One script counts the waiters of some sessions, and says where the next is to begin."""
    places = {0: [1, 1, 100, 41, 1, 7, 0, 0], 7: [1, 1, 20, 41, 1, 0, 0, 0]}
    server = Answering(lambda asked: [*places[int(asked.arguments[0])], [0] * 6])
    rw = RWLock(server.client(), "catalogue")
    assert (await rw.write.statistics()).waiting == 120
    assert len(server.asked) == 2
    assert await rw.write.locked()
    assert len(server.asked) == 3
    await server.close()


def test_release_before_anything_was_asked_begins_nothing() -> None:
    async def release() -> None:
        with pytest.raises(RuntimeError, match="lock 'orders:42': the calling task holds no lease to release"):
            await Lock(Redis(port=1), "orders:42").release()

    asyncio.run(release())
