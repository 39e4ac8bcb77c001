"""A reply that is lost leaves open what Redis did; asking again must give the same grant, and take nothing twice."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import HierarchicalLock, Lease, LeaseLostError, Lock, MultiLock, RWLock, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import UNREACHABLE, Loss, either_loss, wait_until_listening
from tests.faults.support.kinds import Kind, make
from tests.faults.support.residue import alive, wait_until_only_residue
from tests.support.lateness import SLACK, assert_within, kept, measured_lag
from tests.support.primitives import Acquirable, queued, rows_where

pytestmark = either_loss

LOCK_KEY = b"aiolocks:lock:{once}"

GRANTED: dict[str, Callable[..., Any]] = {
    **{row.id: row.make for row in rows_where(without={"redlock": "`test_undo` has it"}).values()},
    "upgradeable lock": lambda redis, name, **options: RWLock(redis, name, **options).upgradeable,
}

GUARDING = rows_where(lambda kind: kind.guards)


async def calls_of(redis: Redis, command: str) -> int:
    """Return how often the server has run *command* since its statistics were reset, scripts included."""
    statistics = await redis.info("commandstats")
    return int(statistics.get(f"cmdstat_{command}", {}).get("calls", 0))


async def test_a_lock_whose_grant_is_lost_is_acquired_once_with_one_fencing_token(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    """F1: one key, one fencing token, however the answer is lost."""
    await redis.config_resetstat()
    proxy.drop_next_reply(LOCK_KEY, how)
    begun = time.monotonic()
    lease = await Lock(client, "once", ttl=20).acquire()
    print(f"{how}: acquired after {time.monotonic() - begun:.2f} s over {proxy.connections_total} connections")

    assert sorted(await redis.keys("*{*")) == [LOCK_KEY, LOCK_KEY + b":fence"]
    assert await redis.get(LOCK_KEY) == f"{lease.token} {lease.fencing_token}".encode()
    assert await redis.get(LOCK_KEY + b":fence") == str(lease.fencing_token).encode()
    assert await calls_of(redis, "set") == 2, "the holder and the fencing token, written once each"
    scripts = await calls_of(redis, "eval") + await calls_of(redis, "evalsha")
    assert scripts == 2 * 2, "the request was sent again, behind what the session says of itself on each link"
    assert await lease.release()


@pytest.mark.parametrize("kind", GRANTED)
async def test_a_lease_whose_grant_is_lost_is_granted_once(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, kind: str
) -> None:
    """F1 for permits, modes, names and levels."""
    proxy.drop_next_reply(b"{once", how)
    lease = await GRANTED[kind](client, "once", ttl=20).acquire()
    now = await GRANTED[kind](redis, "once").statistics()
    assert (now.holders, now.waiting, now.fencing_token) == (1, 0, lease.fencing_token)
    assert await lease.release()
    assert await alive(redis) == []


LEVELS = [b"aiolocks:hierarchy:{shop}", b"aiolocks:hierarchy:{shop}/orders", b"aiolocks:hierarchy:{shop}/orders/42"]
IN_REQUESTS = {
    **{name: key + b"\r\n" for name, key in zip(["root", "table", "row"], LEVELS, strict=True)},
    "fence": b"%b:meta\r\n$%d\r\n%b\r\n" % (LEVELS[0], len(LEVELS[1]), LEVELS[1]),
}
"""What only the request for that level has in it, or the one for the fencing token of all."""


@pytest.mark.parametrize("lost", IN_REQUESTS)
async def test_a_path_is_held_once_though_a_reply_is_lost(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, lost: str
) -> None:
    proxy.drop_next_reply(IN_REQUESTS[lost], how)
    async with HierarchicalLock(client, "shop/orders/42", ttl=10).write as lease:
        assert [await redis.zcard(key) for key in LEVELS] == [1, 1, 1]
        assert len(set(lease.fencing_tokens.values())) == 1
    await wait_until_only_residue(redis, within=3)


async def test_an_upgrade_with_no_answer_is_one(redis: Redis, client: Redis, proxy: FaultProxy, how: Loss) -> None:
    async with RWLock(client, "once", ttl=20).upgradeable as lease:
        proxy.drop_next_reply(b"{once}", how)
        async with lease.upgrade() as alone:
            now = await RWLock(redis, "once").read.statistics()
            assert (now.holders, now.waiting, now.fencing_token) == (2, 0, alone.fencing_token)
        assert await redis.zcard("aiolocks:readwrite:{once}") == 1


async def test_an_upgrade_that_is_undone_before_it_arrives_is_never_granted(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    async with RWLock(client, "once", ttl=20).upgradeable as lease:
        proxy.drop_next_reply(b"{once}", how)
        upgrading = asyncio.create_task(lease.upgrade().__aenter__())
        await asyncio.sleep(0)
        upgrading.cancel()
        await asyncio.wait([upgrading])
        async with RWLock(redis, "once").read.hold(timeout=5):
            assert lease.held
    await wait_until_only_residue(redis, within=5)


async def test_a_downgrade_whose_answer_is_lost_is_asked_for_again(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    async with RWLock(client, "once", ttl=20).write as lease:
        reader = asyncio.create_task(RWLock(redis, "once").read.acquire())
        await queued(RWLock(redis, "once").read, 1)
        proxy.drop_next_reply(b"{once}", how)
        async with asyncio.timeout(5):
            await lease.downgrade()
        await (await reader).release()
        assert lease.held


async def test_a_client_that_does_not_retry_gets_its_own_exception_and_holds_nothing(
    redis: Redis, proxy: FaultProxy, how: Loss
) -> None:
    proxy.drop_next_reply(LOCK_KEY, how)
    async with Redis.from_url(proxy.url) as impatient:
        with pytest.raises(UNREACHABLE):
            await Lock(impatient, "once", ttl=20).acquire()
        await wait_until_only_residue(redis, within=1.0)


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_waiter_whose_place_in_the_queue_is_lost_keeps_it_and_has_it_once(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, kind: Kind
) -> None:
    order: list[str] = []

    async def wait_for_it(who: str, owner: Redis) -> Lease:
        lease = await make(kind, owner, "once", ttl=20).acquire()
        order.append(who)
        return lease

    mine = make(kind, redis, "once", ttl=20)
    holding = await mine.acquire()
    proxy.drop_next_reply(b"{once}", how)
    first = asyncio.create_task(wait_for_it("lost reply", client))
    await wait_until_listening(redis, 1)  # it has asked again, and can be told
    second = asyncio.create_task(wait_for_it("behind it", redis))
    await queued(mine, 2)
    await holding.release()
    lease = await first
    assert (await mine.statistics()).waiting == 1
    await lease.release()
    await (await second).release()
    assert order == ["lost reply", "behind it"]


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_block_whose_release_is_not_answered_ends_without_an_error_and_the_name_is_free(
    redis: Redis, client: Redis, proxy: FaultProxy, caplog: pytest.LogCaptureFixture, how: Loss, kind: Kind
) -> None:
    async with measured_lag() as lag:
        async with make(kind, client, "once", ttl=20):
            proxy.drop_next_reply(b"{once}", how)
            left_at = time.monotonic()
        leaving = time.monotonic() - left_at
    print(f"{how}: leaving took {leaving:.2f} s, with {len(caplog.records)} warnings")
    assert_within(leaving, 1.0 + SLACK * 0.1 + lag.worst)
    assert len(caplog.records) <= 1
    lease = await make(kind, redis, "once", ttl=20).try_acquire()
    assert lease is not None
    await lease.release()


async def test_a_lease_goes_on_when_the_answers_to_renewals_are_lost(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    ttl = 1.5
    shortest = ttl
    # Up to a second passes between two renewals that count, which leaves 0.4 s.
    async with measured_lag() as lag, kept(3 * 0.4), Lock(client, "once", ttl=ttl) as lease:
        for _ in range(3):
            proxy.drop_next_reply(LOCK_KEY, how)
            ends_at = time.monotonic() + 0.8 * ttl
            while time.monotonic() < ends_at:
                await asyncio.sleep(0.01)
                lease.check()
                shortest = min(shortest, lease.remaining())
        assert await redis.get(LOCK_KEY + b":fence") == str(lease.fencing_token).encode()
    print(f"{how}: at least {shortest:.2f} s of {ttl} s were left all the time")
    assert_within(ttl - shortest, 1.0 + SLACK * 0.1 + lag.worst, "since the last renewal that counted")


# Commands that a lease guards: the caller gets what the first attempt answered.


@pytest.mark.parametrize("kind", GUARDING)
async def test_commands_whose_answers_are_lost_are_carried_out_once(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, kind: str
) -> None:
    async with GUARDING[kind].make(client, "once") as lease:
        await lease.guard(("INCRBY", "test:n", 10))
        proxy.drop_next_reply(b":g:", how)
        assert await lease.guard(("INCR", "test:n"), ("RPUSH", "test:l", "once"), ("GET", "none")) == [11, 1, None]
        assert await lease.guard(("INCR", "test:n")) == [12]
    assert await redis.get("test:n") == b"12"
    assert await redis.lrange("test:l", 0, -1) == [b"once"]


async def test_guards_at_once_are_each_carried_out_once_though_their_client_does_not_retry(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    async with Redis.from_url(proxy.url) as impatient:
        for number, guarding in enumerate((client, impatient)):
            async with Lock(guarding, "once") as lease:
                proxy.drop_next_reply(b":g:", how)
                answers = await asyncio.gather(*(lease.guard(("INCR", "test:n")) for _ in range(10)))
            assert answers == [[10 * number + count] for count in range(1, 11)]
    assert await redis.get("test:n") == b"20"


@pytest.mark.leaves_residue
@pytest.mark.parametrize(("make", "gone"), [
    (lambda client: Lock(client, "once", renew=False), "aiolocks:lock:{once}"),
    (lambda client: MultiLock(client, ["a", "b"], renew=False), "aiolocks:multi:{b}"),
    (lambda client: HierarchicalLock(client, "a/b", renew=False).write, "aiolocks:hierarchy:{a}/b"),
], ids=["lock", "multilock", "row of a table"])  # fmt: skip
async def test_commands_that_were_run_are_confirmed_though_the_lease_is_taken_before_the_second_try(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, make: Callable[[Redis], Acquirable], gone: str
) -> None:
    """To say "lost, nothing was written" would be wrong."""
    lease: Lease = await make(client).acquire()
    proxy.drop_next_reply(b":g:", how)
    guarding = asyncio.create_task(lease.guard(("INCR", "test:n")))
    while await redis.get("test:n") is None:
        await asyncio.sleep(0)
    await redis.delete(gone)
    assert await guarding == [1]
    with pytest.raises(LeaseLostError):
        await lease.guard(("INCR", "test:n"))
    assert await redis.get("test:n") == b"1"


@pytest.mark.leaves_residue
async def test_what_cannot_be_confirmed_while_the_lease_lasts_is_redis_pys_own_exception(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    lease = await Lock(client, "once", ttl=1.5, renew=False).acquire()
    proxy.drop_next_reply(b":g:", how)
    guarding = asyncio.create_task(lease.guard(("INCR", "test:n")))
    while not guarding.done() and await redis.get("test:n") is None:
        await asyncio.sleep(0)
    proxy.black_hole = True
    with pytest.raises(UNREACHABLE):
        await guarding
    assert await redis.get("test:n") == b"1"
