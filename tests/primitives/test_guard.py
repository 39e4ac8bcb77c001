"""`lease.guard`: the caller's own commands, run only while the lease is the current one."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import HierarchicalLock, Lease, LeaseLostError, Lock, MultiLock, RLock, Semaphore
from tests.support import primitives
from tests.support.cases import the_rest_slow
from tests.support.clients import CHOSEN, client_at
from tests.support.primitives import Acquirable, Make, Row, as_a_stranger, every_row, of_three_servers, rows_where
from tests.support.servers import RedisServer

LONGEST_RETRY = 60.0
"""Seconds within which a request may come again that was sent over a lost connection."""

pytestmark = pytest.mark.leaves_residue


@pytest.fixture(autouse=True)
def _can_guard(request: pytest.FixtureRequest) -> None:
    row = request.getfixturevalue("row") if "row" in request.fixturenames else None
    if isinstance(row, Row) and not row.guards:
        pytest.skip("no one server knows of its lease")
    kind = request.getfixturevalue("kind") if "kind" in request.fixturenames else None
    if CHOSEN == "cluster" and (kind is several or (isinstance(row, Row) and row.slots > 1)):
        pytest.skip("its names are in several slots, so that no node of a Cluster can guard by it")


@dataclass(frozen=True, slots=True)
class Name:
    """What is locked together, and how somebody else takes a part of it."""

    holders: tuple[str, ...]
    lock: Callable[..., Acquirable]
    part: Callable[..., Acquirable]
    """Given a client and which part."""

    def key(self, key: str) -> str:
        """Return a key that its lease guards on a Cluster too, if any."""
        return f"{self.holders[0][self.holders[0].index('{') :]}:{key}"


def one(name: str, make: Callable[..., Acquirable] = Lock, word: str = "lock") -> Name:
    def lock(client: Redis, _: int = 0, **options: Any) -> Acquirable:
        return make(client, name, **options)

    return Name((f"aiolocks:{word}:{{{name}}}",), lock, lock)


def permit(name: str) -> Name:
    return one(name, partial(Semaphore, limit=1), "semaphore")


def several(name: str) -> Name:
    names = [f"{name}, {part}" for part in "abc"]
    return Name(
        tuple(f"aiolocks:multi:{{{part}}}" for part in names),
        lambda client, **options: MultiLock(client, names, **options),
        lambda client, which, **options: MultiLock(client, [names[which]], **options),
    )


def levels(name: str) -> Name:
    below = ["", "/table", "/table/row"]
    return Name(
        tuple(f"aiolocks:hierarchy:{{{name}}}{level}" for level in below),
        lambda client, **options: HierarchicalLock(client, name + below[-1], **options).write,
        lambda client, which, **options: HierarchicalLock(client, name + below[which], **options).write,
    )


async def test_the_commands_of_a_holder_are_run_in_order_and_their_answers_returned(make: Make) -> None:
    k, none = make.key("k"), make.key("none")
    async with make() as lease:
        answers = await lease.guard(("SET", k, 41), ("INCR", k), ("get", k), ("GET", none), ("MGET", k, none))
    assert answers == [b"OK", 42, b"42", None, [b"42", None]]
    assert await make.client.get(k) == b"42"


@every_row
async def test_each_holder_guards_by_its_own_lease(make: Make) -> None:
    leases = await make.fill()
    for lease in leases:
        assert await lease.guard(("INCR", make.key("n"))) != []
    for lease in leases:
        await lease.release()
        with pytest.raises(LeaseLostError):
            await lease.guard(("INCR", make.key("n")))
    assert await make.client.get(make.key("n")) == str(make.places).encode()


async def test_answers_are_decoded_as_the_client_does_it(redis_url: str, quick_sessions: None) -> None:
    async with client_at(f"{redis_url}?decode_responses=true") as client, Lock(client, "orders") as lease:
        answers = await lease.guard(
            ("SET", "{orders}:k", "é"), ("GET", "{orders}:k"), ("LRANGE", "{orders}:l", 0, -1), ("INCR", "{orders}:n")
        )
    assert answers == ["OK", "é", [], 1]


async def test_bytes_of_any_kind_come_back_as_they_were(make: Make) -> None:
    key, value = make.key("k").encode() + b"\xff", bytes(range(256)) + b"\r\n$-1\r\n"
    async with make() as lease:
        assert await lease.guard(("SET", key, value), ("GET", key)) == [b"OK", value]


async def test_a_lease_that_the_server_has_taken_back_writes_nothing_and_is_lost(make: Make) -> None:
    lease = await make(renew=False).acquire()
    await make.take_away()
    with pytest.raises(LeaseLostError):
        await lease.guard(("SET", make.key("k"), 1), ("INCR", make.key("n")))
    assert await make.client.exists(make.key("k"), make.key("n")) == 0
    assert lease.lost


async def test_a_former_holder_writes_nothing_though_it_believes_in_its_lease(make: Make) -> None:
    believer = await as_a_stranger(make(renew=False).acquire())
    await make.take_away()
    async with make(), asyncio.timeout(5):
        assert believer.held
        with pytest.raises(LeaseLostError):
            await believer.guard(("SET", make.key("k"), "from the past"))
    assert await make.client.get(make.key("k")) is None


async def test_of_commands_one_of_which_fails_the_earlier_ones_stay_and_the_later_are_not_run(make: Make) -> None:
    async with make() as lease:
        with pytest.raises(ResponseError, match=r"command 2 of 3 \(LPUSH\): .*stays"):
            await lease.guard(("SET", make.key("k"), 1), ("LPUSH", make.key("k"), 2), ("SET", make.key("k"), 3))
        assert await make.client.get(make.key("k")) == b"1"
        with pytest.raises(ResponseError, match=r"command 1 of 1 \(NOSUCHCOMMAND\)"):
            await lease.guard(("NOSUCHCOMMAND", make.key("k")))
        assert lease.held


async def test_all_shares_of_a_reentrant_lock_guard_by_the_one_lease(client: Redis, quick_sessions: None) -> None:
    lock = RLock(client, "orders")
    async with lock as outer, lock as inner:
        assert await inner.guard(("INCR", "{orders}:n")) == [1]
        assert await outer.guard(("INCR", "{orders}:n")) == [2]
    with pytest.raises(LeaseLostError):
        await inner.guard(("INCR", "{orders}:n"))


@pytest.mark.parametrize("ttl", [primitives.SHORT, 600.0])
async def test_what_was_answered_is_kept_for_as_long_as_its_request_may_come_again(make: Make, ttl: float) -> None:
    """However short the lease: after the record's end a request sent twice would be carried out twice."""
    async with make(ttl=ttl) as lease:
        await lease.guard(("INCR", make.key("n")))
        (record,) = await make.client.keys("*:g:*")
        kept_ms = await make.client.pttl(record)
    assert 1000 * (max(ttl, LONGEST_RETRY) - 5) < kept_ms <= 1000 * max(ttl, LONGEST_RETRY)


async def test_a_quorum_s_lease_refuses_to_guard_and_says_what_to_do_instead(client: Redis) -> None:
    async with of_three_servers(client, "orders") as lease:
        with pytest.raises(TypeError, match=r"no one server knows .* `lease\.fencing_token`, or guard by a Lock"):
            await lease.guard(("SET", "k", 1))
        assert lease.held
    assert await client.exists("k") == 0


@pytest.mark.redis
@pytest.mark.parametrize(
    ("kind", "races"), the_rest_slow([(one, 300), (one, 1000), (permit, 200), (several, 300), (levels, 300)], quick=1)
)
async def test_in_many_races_with_the_loss_nothing_is_written_after_it(
    redis: Redis, tcp_url: str, quick_sessions: None, kind: Callable[[str], Name], races: int
) -> None:
    """Each time one name of the lease is taken from its holder and given to another while the holder's commands are on
    the way.
    """

    stranger: Redis = client_at(tcp_url)

    async def race(number: int) -> bool:
        name = kind(f"race {number}")
        writer, old_writes = name.key("writer"), name.key("old writes")
        which = number % len(name.holders)
        old = await name.lock(redis, renew=False, on_lost="flag").acquire()

        async def write() -> bool:
            for _ in range(number % 7):
                await asyncio.sleep(0)
            try:
                await old.guard(("SET", writer, "old"), ("INCR", old_writes))
            except LeaseLostError:
                return False
            return True

        async def take_over() -> Lease:
            await stranger.delete(name.holders[which])
            new = await name.part(stranger, which, renew=False).acquire()
            await new.guard(("SET", writer, "new"))
            return new

        wrote, new = await asyncio.gather(write(), take_over())
        with pytest.raises(LeaseLostError):
            await old.guard(("SET", writer, "old"))
        assert await redis.get(writer) == b"new"
        assert await redis.get(old_writes) == (b"1" if wrote else None)
        await new.release()
        return wrote

    async with stranger:
        outcomes = [
            wrote
            for start in range(0, races, 50)
            for wrote in await asyncio.gather(*(race(start + number) for number in range(50)))
        ]
    print(f"{sum(outcomes)} of {len(outcomes)} were in time")
    assert len(outcomes) == races
    assert 0 < sum(outcomes) < races, "no race at all"


@pytest_asyncio.fixture
async def on_cluster(servers: Callable[..., RedisServer], quick_sessions: None) -> AsyncIterator[Redis]:
    """A client of a Cluster of one."""
    async with Redis.from_url(servers(options={"cluster-enabled": "yes"}).url) as client:
        command: Any = client.execute_command
        for start in range(0, 16384, 4096):
            await command("CLUSTER", "ADDSLOTS", *range(start, start + 4096))
        while "cluster_state:ok" not in str(await command("CLUSTER", "INFO")):
            await asyncio.sleep(0.01)
        yield client


IN_ONE_SLOT = [row for row in rows_where(lambda kind: kind.guards).values() if row.slots == 1]


@pytest.mark.rest
@pytest.mark.redis
@pytest.mark.parametrize(("make", "tag"), [
    *((partial(row.make, name="orders"), row.tag) for row in IN_ONE_SLOT),
    (lambda client: MultiLock(client, ["orders:42"]), "{orders:42}"),
], ids=[*map(str, IN_ONE_SLOT), "multilock of one name"])  # fmt: skip
async def test_on_a_cluster_keys_of_another_slot_are_refused_and_nothing_is_written(
    on_cluster: Redis, make: Callable[[Redis], Acquirable], tag: str
) -> None:
    async with make(on_cluster) as lease:
        with pytest.raises(ResponseError, match=rf"begin with {re.escape(tag)}\."):
            await lease.guard(("SET", f"{tag}:total", 1), ("SET", "elsewhere", 1))
        assert await on_cluster.get(f"{tag}:total") is None
        assert await lease.guard(("SET", f"{tag}:total", 1)) == [b"OK"]


@pytest.mark.rest
@pytest.mark.redis
async def test_on_a_cluster_names_of_different_slots_guard_nothing_and_say_why(on_cluster: Redis) -> None:
    async with MultiLock(on_cluster, ["orders:42", "orders:43"]) as lease:
        with pytest.raises(ResponseError, match=r"names are in different slots.*by a lock of one name\. Nothing was"):
            await lease.guard(("SET", "{orders:42}:total", 1))
        assert await on_cluster.get("{orders:42}:total") is None
        assert lease.held
