"""A reply that is lost leaves open what Redis did; asking again must give the same grant, and take nothing twice."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Literal

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from aiolocks import Lease, Lock, Semaphore
from aiolocks.testing import FaultProxy
from tests.faults.support.asking import UNREACHABLE, retrying
from tests.faults.support.residue import wait_until_only_residue
from tests.support.lateness import SLACK, assert_within, measured_lag

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.redis,
    pytest.mark.faults,
    pytest.mark.parametrize("how", ["reset", "black_hole"]),
]

Loss = Literal["reset", "black_hole"]

LOCK_KEY = b"aiolocks:lock:{once}"
SEMAPHORE_KEY = b"aiolocks:semaphore:{once}"


@pytest_asyncio.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[Redis]:
    """A client through the proxy that retries."""
    async with retrying(proxy) as through_proxy:
        yield through_proxy


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


async def test_a_semaphore_whose_grant_is_lost_gives_one_permit(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    """F1 for permits."""
    proxy.drop_next_reply(SEMAPHORE_KEY, how)
    semaphore = Semaphore(client, "once", 5, ttl=20)
    lease = await semaphore.acquire(permits=2)

    now = await semaphore.statistics()
    assert (now.permits, now.holders, now.waiting, now.fencing_token) == (2, 1, 0, lease.fencing_token)
    assert await redis.zcard(SEMAPHORE_KEY) == 1
    assert await lease.release()
    assert (await semaphore.statistics()).holders == 0


async def test_a_client_that_does_not_retry_gets_its_own_exception_and_holds_nothing(
    redis: Redis, proxy: FaultProxy, how: Loss
) -> None:
    proxy.drop_next_reply(LOCK_KEY, how)
    async with Redis.from_url(proxy.url) as client:
        with pytest.raises(UNREACHABLE):
            await Lock(client, "once", ttl=20).acquire()
        took = await wait_until_only_residue(redis, within=1.0)
    print(f"{how}: undone {took:.3f} s after the exception")


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_waiter_whose_place_in_the_queue_is_lost_keeps_it_and_has_it_once(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss, kind: type[Lock] | type[Semaphore]
) -> None:
    def make(owner: Redis) -> Lock | Semaphore:
        return Lock(owner, "once", ttl=20) if kind is Lock else Semaphore(owner, "once", 1, ttl=20)

    order: list[str] = []

    async def wait_for_it(who: str, owner: Redis) -> Lease:
        lease = await make(owner).acquire()
        order.append(who)
        return lease

    holding = await make(redis).acquire()
    proxy.drop_next_reply(LOCK_KEY if kind is Lock else SEMAPHORE_KEY, how)
    first = asyncio.create_task(wait_for_it("lost reply", client))
    while len(await redis.pubsub_channels("aiolocks:wake:*")) < 1:  # it has asked again, and can be told
        await asyncio.sleep(0.005)
    second = asyncio.create_task(wait_for_it("behind it", redis))
    while (await make(redis).statistics()).waiting < 2:
        await asyncio.sleep(0.005)
    await holding.release()
    lease = await first
    assert (await make(redis).statistics()).waiting == 1
    await lease.release()
    await (await second).release()
    assert order == ["lost reply", "behind it"]


@pytest.mark.parametrize("kind", [Lock, Semaphore])
async def test_a_block_whose_release_is_not_answered_ends_without_an_error_and_the_name_is_free(
    redis: Redis,
    client: Redis,
    proxy: FaultProxy,
    caplog: pytest.LogCaptureFixture,
    how: Loss,
    kind: type[Lock] | type[Semaphore],
) -> None:
    def make(owner: Redis) -> Lock | Semaphore:
        return Lock(owner, "once", ttl=20) if kind is Lock else Semaphore(owner, "once", 1, ttl=20)

    async with measured_lag() as lag:
        async with make(client):
            proxy.drop_next_reply(LOCK_KEY if kind is Lock else SEMAPHORE_KEY, how)
            left_at = time.monotonic()
        leaving = time.monotonic() - left_at
    print(f"{how}: leaving took {leaving:.2f} s, with {len(caplog.records)} warnings")
    assert_within(leaving, 1.0 + SLACK * 0.1 + lag.worst)
    assert len(caplog.records) <= 1
    lease = await make(redis).try_acquire()
    assert lease is not None
    await lease.release()


async def test_a_release_by_hand_whose_answer_is_lost_is_asked_again_and_counts(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    lease = await Lock(client, "once", ttl=20).acquire()
    proxy.drop_next_reply(LOCK_KEY, how)
    assert await lease.release() is True
    assert not await Lock(redis, "once").locked()


async def test_a_lease_goes_on_when_the_answers_to_renewals_are_lost(
    redis: Redis, client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    ttl = 1.5
    shortest = ttl
    async with measured_lag() as lag, Lock(client, "once", ttl=ttl) as lease:
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


async def test_a_renewal_by_hand_whose_answer_is_lost_raises_and_leaves_the_lease_as_it_was(
    client: Redis, proxy: FaultProxy, how: Loss
) -> None:
    async with Lock(client, "once", ttl=20, renew=False) as lease:
        remaining = lease.remaining()
        proxy.drop_next_reply(LOCK_KEY, how)
        with pytest.raises(UNREACHABLE):
            await lease.renew(60)
        assert lease.held
        assert lease.remaining() <= remaining, "an answer that is not there extends nothing"
        assert await lease.renew(60)
        assert lease.remaining() > 20
