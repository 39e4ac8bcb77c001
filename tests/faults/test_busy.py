"""Somebody else's script that runs for long: BUSY is ridden out by every verb, and costs no holder its lease."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from aiolocks import HierarchicalLock, Lease, Lock, MultiLock, Redlock, RLock, RWLock, Semaphore, Versioned
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import outcome_of
from tests.faults.support.busy import BUSY_AT_ONCE, busy
from tests.faults.support.residue import alive, connections
from tests.support.lateness import SLACK, assert_within, in_time, measured_lag
from tests.support.network import until_exists
from tests.support.primitives import queued
from tests.support.replicas import replicated
from tests.support.servers import RedisServer

RUNS = 1.5
"""Seconds that the script takes."""

TTL = 4.0


@pytest.fixture
def own_server(servers: Callable[..., RedisServer]) -> RedisServer:
    return servers(options=BUSY_AT_ONCE)


@pytest_asyncio.fixture
async def client(own_server: RedisServer) -> AsyncIterator[Redis]:
    """One that tries nothing again by itself."""
    async with Redis.from_url(own_server.url, retry=Retry(NoBackoff(), 0)) as made:
        yield made


async def kept(lease: Lease) -> None:
    """See that the lease is good still, on the server too."""
    assert await lease.guard(("INCR", "test:kept")) == [1]
    assert await lease.release()


def is_busy(result: object) -> bool:
    return isinstance(result, ResponseError) and str(result).startswith("BUSY ")


# What stands before `yield` is done before the script begins; what is gathered behind it meets the script.


async def by_acquiring(client: Redis) -> AsyncIterator[None]:
    yield
    leases = await asyncio.gather(
        Lock(client, "orders", ttl=TTL).acquire(),
        RLock(client, "orders", ttl=TTL).acquire(timeout=8),
        Semaphore(client, "orders", 3, ttl=TTL).acquire(permits=2),
        MultiLock(client, ["a", "b", "c"], ttl=TTL).acquire(),
        HierarchicalLock(client, "shop/orders/42", ttl=TTL).write.acquire(),
    )
    await kept(leases[0])
    assert [await lease.release() for lease in leases[1:]] == [True] * 4


async def by_using_leases(client: Redis) -> AsyncIterator[None]:
    names = ["guards", "renewed", "lost", "released"]
    guards, renewed, lost, released = [await Lock(client, name, ttl=TTL).acquire() for name in names]
    permits = await Semaphore(client, "orders", 2, ttl=TTL).acquire()
    await client.delete("aiolocks:lock:{lost}")
    yield
    answers: tuple[object, ...] = await asyncio.gather(
        guards.guard(("INCR", "test:n"), ("GET", "test:n")), permits.guard(("INCR", "test:permits")), renewed.renew(30),
        lost.renew(), released.release(),
    )  # fmt: skip
    assert list(answers) == [[1, b"1"], [1], True, False, True]
    assert renewed.remaining() > 25
    assert lost.lost
    await kept(renewed)
    assert [await guards.release(), await permits.release()] == [True, True]


async def by_changing_modes(client: Redis) -> AsyncIterator[None]:
    grows = await RWLock(client, "grows", ttl=TTL).upgradeable.acquire()
    shrinks = await RWLock(client, "shrinks", ttl=TTL).write.acquire()
    yield
    upgrade = grows.upgrade()
    alone, _ = await asyncio.gather(upgrade.__aenter__(), shrinks.downgrade())
    assert alone.held
    await upgrade.__aexit__(None, None, None)
    async with RWLock(client, "shrinks").read.hold(timeout=1):
        pass
    assert [await grows.release(), await shrinks.release()] == [True, True]


async def by_asking(client: Redis) -> AsyncIterator[None]:
    yield
    statistics, _, *locked = await asyncio.gather(
        Lock(client, "orders").statistics(), Semaphore(client, "resized", 3).resize(5),
        Semaphore(client, "orders", 3).locked(), MultiLock(client, ["a", "b"]).locked(),
        RWLock(client, "orders").read.locked(), HierarchicalLock(client, "shop/orders").read.locked(),
    )  # fmt: skip
    assert (statistics.holders, locked) == (0, [False] * 4)
    assert (await Semaphore(client, "resized", 3).statistics()).limit == 5


async def by_reading_and_writing(client: Redis) -> AsyncIterator[None]:
    stock, count = Versioned(client, "test:stock"), Versioned(client, "test:count")
    _, version = await stock.read()
    yield
    counted, written = await asyncio.gather(
        count.update(lambda value: int(value or 0) + 1), stock.write(b"17", version)
    )
    assert counted[0] == 1
    assert await stock.read() == (b"17", written)


VERBS = [by_acquiring, by_using_leases, by_changing_modes, by_asking, by_reading_and_writing]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
async def test_every_verb_rides_out_a_script_of_another_program(
    own_server: RedisServer, client: Redis, verb: Callable[[Redis], AsyncIterator[None]]
) -> None:
    steps = verb(client)
    await anext(steps)
    async with busy(own_server, RUNS, writes=True):
        ended, took = await outcome_of(lambda: anext(steps))
    assert isinstance(ended, StopAsyncIteration), ended
    assert took > 0.2, "it was not ridden out: the script was over"
    assert await alive(client) == []


async def test_a_limit_whose_declaration_failed_is_declared_again(own_server: RedisServer, client: Redis) -> None:
    async with Redis.from_url(own_server.url, db=0) as fleet:
        await Semaphore(fleet, "scraper", 3, ttl=TTL).resize(3)
    async with busy(own_server, RUNS):
        lease = await Semaphore(client, "scraper", 5, ttl=TTL).acquire()
    assert (await Semaphore(client, "scraper", 5).statistics()).limit == 5
    await kept(lease)


@pytest.mark.parametrize("writes", [False, True], ids=["that can be killed", "that cannot"])
@pytest.mark.parametrize("watchdog", ["task", "thread"])
async def test_no_holder_is_lost_to_a_script_that_is_over_within_the_ttl(
    own_server: RedisServer, client: Redis, watchdog: Literal["task", "thread"], writes: bool
) -> None:
    async with (
        Lock(client, "orders", ttl=TTL, watchdog=watchdog) as one,
        Semaphore(client, "orders", 3, ttl=TTL, watchdog=watchdog) as permit,
        MultiLock(client, ["a", "b"], ttl=TTL, watchdog=watchdog) as several,
    ):
        for _ in range(2):
            async with busy(own_server, RUNS, writes=writes):
                pass
            await asyncio.sleep(TTL / 2)
        for lease in (one, permit, several):
            assert lease.held
            await lease.guard(("PING",))
    assert await Lock(client, "orders").locked() is False


async def test_a_waiter_keeps_its_place_and_its_turn_while_a_script_keeps_redis_busy(
    own_server: RedisServer, client: Redis
) -> None:
    first = await Lock(client, "orders", ttl=TTL).acquire()
    waiting = [asyncio.create_task(Lock(client, "orders", ttl=TTL).acquire()) for _ in range(3)]
    await queued(Lock(client, "orders"), 3)
    async with busy(own_server, RUNS):
        released = asyncio.create_task(first.release())
        await asyncio.sleep(RUNS / 2)
        assert not any(task.done() for task in [*waiting, released])
    assert await released
    fences = [first.fencing_token]
    for task in waiting:
        async with asyncio.timeout(5), await task as lease:
            fences.append(lease.fencing_token)
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("how", ["try_acquire", "timeout 0", "several", "upgrade"])
async def test_one_that_asks_once_hears_that_redis_is_busy(own_server: RedisServer, client: Redis, how: str) -> None:
    lock = Lock(client, "orders", ttl=TTL)
    upgradeable = await RWLock(client, "other", ttl=TTL).upgradeable.acquire()
    asking: dict[str, Callable[[], Awaitable[Any]]] = {
        "try_acquire": lock.try_acquire,
        "timeout 0": lambda: lock.acquire(timeout=0),
        "several": lambda: MultiLock(client, ["a", "b"]).try_acquire(),
        "upgrade": lambda: upgradeable.upgrade(timeout=0).__aenter__(),
    }
    async with busy(own_server, RUNS), in_time(SLACK * 0.15):
        result, _ = await outcome_of(asking[how])
    assert is_busy(result), result
    assert await upgradeable.release()
    assert await lock.locked() is False


@pytest.mark.parametrize("how", ["acquire", "block"])
async def test_a_caller_with_less_time_than_the_script_learns_that_redis_is_busy_and_not_the_lock(
    own_server: RedisServer, client: Redis, how: str
) -> None:
    lock = Lock(client, "orders", ttl=TTL, acquire_timeout=0.5)
    async with busy(own_server, RUNS), in_time(0.5 + SLACK * 0.15):
        result, took = await outcome_of(lock.__aenter__ if how == "block" else lock.acquire)
    assert is_busy(result), result
    assert took >= 0.5
    statistics = await lock.statistics()
    assert (statistics.holders, statistics.waiting) == (0, 0)


async def test_riding_out_a_script_costs_no_connection(own_server: RedisServer, client: Redis) -> None:
    async with Lock(client, "held", ttl=TTL) as lease:
        before = await connections(client)
        async with busy(own_server, RUNS):
            await asyncio.gather(Lock(client, "orders").locked(), lease.renew(), lease.guard(("PING",)))
        assert await connections(client) == before


async def test_the_handshake_of_a_connection_is_ridden_out_too(own_server: RedisServer) -> None:
    """Of a client of another database, SELECT is the first that is answered so."""
    async with Redis.from_url(own_server.url, db=1) as client, busy(own_server, RUNS):
        async with Lock(client, "orders", ttl=TTL).hold(timeout=8) as lease:
            assert lease.held
        assert not await Lock(client, "orders").locked()


async def test_a_lease_whose_replicas_are_waited_for_meanwhile_is_had_afterwards() -> None:
    """The grant has come, and what is sent behind it for the replicas finds the script."""
    with replicated() as pair:
        async with (
            Redis.from_url(pair.primary.url) as admin,
            FaultProxy(port=pair.primary.port) as proxy,
            Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0)) as client,
        ):
            await admin.config_set("lua-time-limit", 5)
            async with Lock(client, "connected", replicas=1):
                pass
            proxy.delay_next_reply(0.6)
            acquiring = asyncio.create_task(Lock(client, "orders", ttl=TTL, replicas=1).acquire())
            await until_exists(admin, "aiolocks:lock:{orders}")
            async with busy(pair.primary, RUNS):
                pass
            await kept(await acquiring)


# Several servers.


@pytest.fixture
def three(servers: Callable[..., RedisServer]) -> list[RedisServer]:
    return [servers(options=BUSY_AT_ONCE) for _ in range(3)]


@pytest_asyncio.fixture
async def clients(three: list[RedisServer]) -> AsyncIterator[list[Redis]]:
    made = [Redis.from_url(server.url, retry=Retry(NoBackoff(), 0)) for server in three]
    yield made
    for client in made:
        await client.aclose()


async def test_a_quorum_rides_out_scripts_on_most_servers(three: list[RedisServer], clients: list[Redis]) -> None:
    lock = Redlock(clients, "orders", ttl=TTL)
    lease = await lock.acquire()
    async with busy(three[0], RUNS), busy(three[2], RUNS):
        renewed, took = await outcome_of(lambda: lease.renew(30))
    assert renewed is True
    assert took > 0.2
    async with busy(three[0], RUNS), busy(three[1], RUNS):
        assert (await lock.statistics()).holders == 1
    async with busy(three[0], RUNS), busy(three[1], RUNS):
        assert await lease.release() is True
    async with busy(three[0], RUNS), busy(three[1], RUNS):
        lease = await lock.acquire()
        assert await lock.locked()
    assert await lease.release()


# Longer than it is ridden out.


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_a_script_of_another_program_is_ridden_out_for_ten_seconds_and_no_longer(
    own_server: RedisServer, client: Redis
) -> None:
    lease = await Lock(client, "held", ttl=30).acquire()
    short = await Lock(client, "short", ttl=5, renew=False).acquire()
    stock = Versioned(client, "test:stock")
    _, version = await stock.read()
    asking: dict[str, Callable[[], Awaitable[Any]]] = {
        "acquire": Lock(client, "orders").acquire,
        "acquire, timeout 20": lambda: Lock(client, "orders").acquire(timeout=20),
        "statistics": Lock(client, "orders").statistics, "resize": lambda: Semaphore(client, "orders", 2).resize(3),
        "write": lambda: stock.write(b"17", version), "guard": lambda: lease.guard(("INCR", "test:n")),
        "renew": lease.renew, "renew, ttl 5": short.renew,
    }  # fmt: skip
    async with busy(own_server, 12), measured_lag() as lag:
        outcomes = await asyncio.gather(*(outcome_of(each) for each in asking.values()))
    for what, (result, took) in zip(asking, outcomes, strict=True):
        bound = 5.0 if "ttl 5" in what else 10.0
        assert is_busy(result), (what, result)
        assert bound - 1.5 < took, what
        assert_within(took, bound + SLACK * 0.2 + lag.worst, what)
    assert await client.exists("test:n", "test:stock") == 0
    await kept(lease)
