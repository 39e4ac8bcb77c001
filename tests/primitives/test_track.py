"""`track=True`: a holder whose key is taken away is stopped at once, not only at its next renewal."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import LeaseLostError, Lock, LockManager, MultiLock, RLock, RWLock
from aiolocks.events import on_event
from tests.support import network
from tests.support.clients import CHOSEN, PASSWORD, chosen_client, documented_rights
from tests.support.inside import tracked_of
from tests.support.lateness import SLACK, assert_within, kept, measured_lag
from tests.support.network import until_exists
from tests.support.primitives import Row, as_a_stranger, enter, rows_where, until
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis

PROMISED = 0.05
"""Seconds, net of what the event loop is late."""

TRACKED = list(rows_where(lambda kind: kind.tracked, shared=False).values())

KEYS = {
    row.id: f"aiolocks:{row.kind.key_word}:{{{'orders, second' if row.kind.several else 'orders'}}}" for row in TRACKED
}

each = pytest.mark.parametrize("row", TRACKED, ids=str)


@pytest_asyncio.fixture
async def client(server: RedisServer, quick_sessions: None) -> AsyncIterator[Redis]:
    if CHOSEN == "acl":
        pytest.skip("the README's rights alone do not allow it")
    async with chosen_client(server) as made:
        yield made


async def delete(redis: Redis, key: str) -> None:
    assert await redis.delete(key)


async def flush(redis: Redis, key: str) -> None:
    await redis.flushall()


async def take_over(redis: Redis, key: str) -> None:
    if await redis.type(key) in (b"string", "string"):
        await redis.set(key, "another", xx=True)
    else:
        together: Any
        async with redis.pipeline(transaction=True) as together:
            together.delete(key)
            together.zadd(key, {"another": 9e12})
            together.expire(key, 60)
            await together.execute()


async def overwrite(redis: Redis, key: str) -> None:
    """By another type of value, so that the scripts err."""
    together: Any
    async with redis.pipeline(transaction=True) as together:
        together.delete(key)
        together.hset(key, "of", "another")
        together.expire(key, 60)
        await together.execute()


async def tracked(client: Any) -> None:
    """Wait until Redis tracks all that is to be tracked."""
    await network.until(lambda: (state := tracked_of(client)) is not None and state.settled)


async def stopped_after(lock: Any, *steps: Callable[[], Awaitable[object]]) -> float:
    """Return how soon *steps* stop the body of a block, in seconds net of what the loop is late."""
    stopped_at = 0.0
    async with measured_lag() as lag:
        with pytest.raises(LeaseLostError):
            async with asyncio.timeout(8), lock:
                taken_at = time.monotonic()
                for step in steps:
                    await step()
                try:
                    await asyncio.sleep(60)
                finally:
                    stopped_at = time.monotonic()
    return stopped_at - taken_at - lag.worst


@each
@pytest.mark.parametrize("take_away", [delete, flush, take_over, overwrite])
async def test_the_body_is_stopped_at_once(client: Redis, redis: Redis, row: Row, take_away: Any) -> None:
    settled, taken = partial(tracked, client), partial(take_away, redis, KEYS[row.id])
    for watchdog in ("task", "thread"):
        assert await stopped_after(row.make(client, "orders", track=True, watchdog=watchdog), settled, taken) < 1
        await redis.delete(KEYS[row.id])
    async with row.make(client, "others", track=True, on_lost="flag"):  # the link is there
        await tracked(client)
        took = await stopped_after(row.make(client, "orders", track=True), taken)
        assert_within(took, PROMISED * SLACK)
    await redis.delete(KEYS[row.id])


@pytest.mark.parametrize("row", [row for row in TRACKED if row.id != "write lock"], ids=str)
async def test_a_lease_that_is_marked_as_revoked_is_told_so_at_once(client: Redis, redis: Redis, row: Row) -> None:
    async def revoke() -> None:
        await tracked(client)
        value: Any = await redis.get(KEYS[row.id])
        await redis.set(KEYS[row.id], value + (" R" if isinstance(value, str) else b" R"), keepttl=True)

    lock: Any = row.make(client, "orders", track=True)
    with pytest.raises(LeaseLostError) as caught:
        async with asyncio.timeout(8), lock:
            await revoke()
            await asyncio.sleep(60)
    assert caught.value.reason == "revoked"


async def test_a_lease_that_is_not_renewed_is_tracked_and_not_extended(client: Redis, redis: Redis) -> None:
    key = KEYS["lock"]

    async def when_tracked() -> None:
        await tracked(client)
        assert await redis.pexpire(key, 5000)
        await tracked(client)
        assert await redis.pttl(key) <= 5000
        await delete(redis, key)

    assert await stopped_after(Lock(client, "orders", track=True, renew=False), when_tracked) < 1


async def test_a_tracked_loss_by_hand_or_with_a_flag_wakes_tasks_that_wait_for_it(client: Redis, redis: Redis) -> None:
    lease = await Lock(client, "orders", track=True, on_lost="flag").acquire()
    await tracked(client)
    await delete(redis, KEYS["lock"])
    assert await asyncio.wait_for(lease.wait_lost(), 5)


@pytest.mark.parametrize(("rights", "early"), [((), False), (("+client|tracking",), False), (("+client|tracking",), 1)])
async def test_a_lease_by_hand_without_renewal_ends_as_planned_and_only_an_earlier_end_is_a_warning(
    one_server: RedisServer, redis: Redis, quick_sessions: None, caplog: Any, rights: tuple[str, ...], early: bool
) -> None:
    told: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.callback(on_event(lambda event: told.append(event.kind)))
        async with a_user(one_server, *rights) as client:
            lease = await Lock(client, "orders", track=True, renew=False, ttl=60 if early else 0.3).acquire()
            if early:
                await tracked(client)
                await delete(redis, KEYS["lock"])
            await network.until(lambda: "lost" in told and lease.lost)
    assert ("lock 'orders'" in caplog.text) == early


async def test_a_block_of_an_rlock_without_renewal_logs_its_loss_once(client: Redis, redis: Redis, caplog: Any) -> None:
    for ttl, steps in ((0.3, []), (60, [partial(tracked, client), partial(delete, redis, KEYS["rlock"])])):
        caplog.clear()
        await stopped_after(RLock(client, "orders", track=True, renew=False, ttl=ttl), *steps)
        assert len(caplog.messages) == 1


async def test_an_evicted_lock_is_lost_at_once(servers: Callable[..., RedisServer], quick_sessions: None) -> None:
    server = servers(options={"maxmemory-policy": "allkeys-random"})
    async with Redis.from_url(server.url) as client, Redis.from_url(server.tcp_url) as operator:

        async def evict() -> None:
            await operator.config_set("maxmemory", 1)
            await until(lambda: gone(operator))
            await operator.config_set("maxmemory", 0)

        assert await stopped_after(Lock(client, "orders", track=True), partial(tracked, client), evict) < 1


async def gone(redis: Redis) -> bool:
    with contextlib.suppress(Exception):  # each write makes room first, and is refused if there is none
        await redis.set("another", 1)
    return not await redis.exists(KEYS["lock"])


@pytest.mark.rest
async def test_renewals_and_writes_that_change_nothing_are_hints_that_stop_no_holder_and_are_bounded(
    one_server: RedisServer, client: Redis, redis: Redis
) -> None:
    def asked() -> int:
        calls: int = one_server.operator.info("commandstats").get("cmdstat_get", {"calls": 0})["calls"]
        return calls

    async with kept(0.6), Lock(client, "orders", track=True, ttl=0.6) as lease:
        await tracked(client)
        before, began, hints = asked(), time.monotonic(), 0
        while time.monotonic() < began + 1.2 or hints < 1000:  # far more than may be asked
            await redis.persist(KEYS["lock"])
            await redis.pexpire(KEYS["lock"], 600)
            hints += 2
        took = time.monotonic() - began
        lease.check()
        renewals = 2 * took / 0.2 + 4
        assert asked() - before <= took / 0.02 + renewals + 2


async def test_after_a_cut_a_lease_is_tracked_again_and_a_loss_meanwhile_is_found(
    one_server: RedisServer, client: Redis, redis: Redis
) -> None:
    settled, cut, taken = partial(tracked, client), partial(kill_trackers, redis), partial(delete, redis, KEYS["lock"])
    again = partial(until, lambda: trackers(redis))
    for steps in ((settled, cut, taken), (settled, cut, again, settled, taken)):
        assert_within(await stopped_after(Lock(client, "orders", track=True), *steps), SLACK * 0.5)


async def trackers(redis: Redis) -> list[Any]:
    """Return the connections that track."""
    return [each for each in await redis.client_list() if "t" in each["flags"]]


async def kill_trackers(redis: Redis) -> None:
    for each in await trackers(redis):
        await redis.client_kill_filter(_id=each["id"])


async def test_the_connection_is_there_while_it_is_needed_and_for_a_second_more(
    one_server: RedisServer, client: Redis, redis: Redis
) -> None:
    async with Lock(client, "another"):
        await enter(Lock(client, "short", track=True))
        async with Lock(client, "orders", track=True):
            await tracked(client)
            assert len(await trackers(redis)) == 1
        ended = time.monotonic()

        async def none() -> bool:
            return not await trackers(redis)

        async with measured_lag() as lag:
            await until(none)
        assert_within(time.monotonic() - ended, 1 + SLACK * 0.1 + lag.worst)
        async with Lock(client, "orders", track=True):
            await tracked(client)
            assert len(await trackers(redis)) == 1


async def test_without_it_nothing_is_tracked(one_server: RedisServer, client: Redis, redis: Redis) -> None:
    async with Lock(client, "orders"), RWLock(client, "orders", track=True).read:
        assert tracked_of(client) is None
        assert not await trackers(redis)


async def test_a_writer_that_goes_on_as_a_reader_is_not_tracked_any_more(client: Redis) -> None:
    rw = RWLock(client, "orders", track=True)
    async with rw.write as lease:
        await tracked(client)
        before = tracked_of(client)
        assert before is not None
        assert before.keys == 1
        await lease.downgrade()
        for _ in range(3):
            await as_a_stranger(enter(rw.read))
        await network.until(lambda: (now := tracked_of(client)) is not None and now.keys == 0)
        assert lease.held


async def test_while_it_waits_for_one_of_several_names_the_others_are_tracked(client: Redis, redis: Redis) -> None:
    """One that is taken away meanwhile is asked for again."""
    blocking = await MultiLock(client, ["b"]).acquire()
    waiting = asyncio.create_task(MultiLock(client, ["a", "b"], track=True).acquire())
    first = "aiolocks:multi:{a}"
    await until_exists(redis, first)
    before = await redis.get(first)
    await tracked(client)
    await delete(redis, first)
    await until_exists(redis, first)
    assert await redis.get(first) != before
    await blocking.release()
    await (await waiting).release()


# Where it cannot be.


async def test_without_the_right_it_is_one_warning_and_works_as_without(
    one_server: RedisServer, quick_sessions: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_user(one_server) as client:
        for name in ("orders", "stock"):
            async with Lock(client, name, track=True) as lease:
                await network.until(lambda: bool(caplog.records))
                assert await lease.renew()
    assert len(caplog.records) == 1
    assert "right +client|tracking" in caplog.messages[0]


@each
async def test_tracking_works_with_that_one_right_besides_the_readmes(
    one_server: RedisServer, redis: Redis, quick_sessions: None, row: Row, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_user(one_server, "+client|tracking") as client:
        settled, taken = partial(tracked, client), partial(delete, redis, KEYS[row.id])
        assert await stopped_after(row.make(client, "orders", track=True), settled, taken) < 1
    (loss,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "gone from the server" in loss


@contextlib.asynccontextmanager
async def a_user(server: RedisServer, *more: str) -> AsyncIterator[Redis]:
    """A client of a user with the README's rights and *more*."""
    server.operator.execute_command(
        "ACL", "SETUSER", "tracker", "reset", "on", f">{PASSWORD}", *documented_rights(), *more
    )  # type: ignore[no-untyped-call]  # redis-py's
    try:
        async with Redis.from_url(server.tcp_url, username="tracker", password=PASSWORD) as client:
            yield client
    finally:
        server.operator.execute_command("ACL", "DELUSER", "tracker")  # type: ignore[no-untyped-call]  # redis-py's


async def test_in_memory_it_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with LockManager.from_url("memory://", track=True) as locks:
        for name in ("orders", "stock"):
            async with locks.lock(name, ttl=1) as lease:
                await network.until(lambda: bool(caplog.records))
                assert lease.held
    assert len(caplog.records) == 1
    assert "memory://" in caplog.messages[0]


async def test_kinds_that_cannot_be_tracked_say_why(client: Redis) -> None:
    untracked = rows_where(lambda kind: not kind.tracked and kind.leased)
    assert len(untracked) >= 3
    for row in untracked.values():
        with pytest.raises(TypeError, match=f"{row.kind.class_name} has no 'track': "):
            row.make(client, "a", track=True)
    locks = LockManager(client, track=True)
    async with locks.semaphore("a", 1), locks.hierarchical("a").read:
        assert tracked_of(client) is None
        async with locks.lock("a"):
            await tracked(client)
