"""`min_hold`: the name stays taken from the grant on for so long at least, whoever has released it."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lease, MultiLock, RLock, RWLock
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.primitives import Make, Row, as_a_stranger, enter, exclusive_rows, free, limited_rows, queued
from tests.support.virtual import clock

MIN = 1.0
"""Seconds."""

SOON = 0.05
"""Seconds after its end by which the first waiter has it, net of what the loop is late."""

IN_TURN = 0.35
"""The same where no caller waits in line: attempts are repeated after random delays."""


@pytest.mark.rest
@exclusive_rows
async def test_a_process_that_comes_late_does_not_run_the_same_slot_again(make: Make, stranger: Redis) -> None:
    async with make(min_hold=MIN) as lease:
        pass
    assert (lease.held, lease.lost) == (False, False)
    for client in (None, stranger):
        assert await as_a_stranger(make(client=client, min_hold=MIN).try_acquire()) is None
    with pytest.raises(AcquireTimeoutError) as caught:
        await make(client=stranger).acquire(timeout=0.1)
    assert caught.value.retry_after is not None
    assert caught.value.retry_after <= MIN
    assert await make().locked()
    await over(make)


@exclusive_rows
@pytest.mark.parametrize("where", ["here", "there"])
async def test_the_first_waiter_has_it_when_that_is_over(make: Make, stranger: Redis, row: Row, where: str) -> None:
    """Though the lease that it waited for was to last for long."""
    lock = make(min_hold=MIN, ttl=30)
    lease = await lock.acquire()
    began = clock()
    waiter = make(client=None if where == "here" else stranger)
    waiting = as_a_stranger(taken(waiter))
    if row.queue:
        await queued(make(), 1)
    assert await lease.release()
    async with measured_lag() as lag:
        other, at = await waiting
    assert other.fencing_token > lease.fencing_token
    assert at - began > MIN - 0.2, "it was granted a little before"
    assert_within(at - began - MIN, (SOON if row.queue else IN_TURN) * SLACK + lag.worst)
    assert await other.release()


async def over(make: Make) -> None:
    """Wait until that time is over. At the levels above a row, what tells of it stays a while; nobody looks there."""
    await free(make())
    await make.take_away()


async def taken(lock: object) -> tuple[Lease, float]:
    lease: Lease = await lock.acquire()  # type: ignore[attr-defined]
    return lease, clock()


@pytest.mark.real_time
@exclusive_rows
async def test_statistics_count_no_holder_of_a_kept_name_and_say_until_when_it_is_kept(make: Make) -> None:
    async with make(min_hold=60):
        now = await make().statistics()
        assert (now.permits, now.holders, now.kept_until) == (1, 1, None)
    now = await make().statistics()
    assert (now.permits, now.holders) == (1, 0)
    assert await make().holders() == ()
    assert await make().locked()
    assert now.kept_until is not None
    granted_at = datetime.fromtimestamp(now.fencing_token / 1e6, UTC)  # by the server's clock, which tests can move
    assert abs(now.kept_until - granted_at - timedelta(seconds=60)) < timedelta(seconds=5)
    await make.take_away()
    assert (await make().statistics()).kept_until is None


@exclusive_rows
async def test_a_holder_that_does_not_wait_for_its_release_keeps_the_name_for_min_hold_too(make: Make) -> None:
    await enter(make(min_hold=MIN, wait_release=False))
    assert await as_a_stranger(make().try_acquire()) is None
    await over(make)


@limited_rows
async def test_what_was_never_acted_on_keeps_nothing(make: Make) -> None:
    """Neither a caller that was cancelled as its turn came, nor one whose time was over."""
    leases = await make.fill()
    waiting = [as_a_stranger(make(min_hold=60).acquire()) for _ in range(3)]
    asked = as_a_stranger(make(min_hold=60).acquire(timeout=0.1))
    with pytest.raises(AcquireTimeoutError):
        await asked
    for lease in leases:
        await lease.release()
    for each in waiting:
        each.cancel()
    for given in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(given, Lease):  # it went first
            await make.take_away()
            await given.release()
    await over(make)


async def test_several_names_of_which_one_was_busy_keep_nothing(client: Redis, quick_sessions: None) -> None:
    async with MultiLock(client, ["b"]):
        assert await as_a_stranger(MultiLock(client, ["a", "b", "c"], min_hold=60).try_acquire()) is None
        with pytest.raises(AcquireTimeoutError):
            await as_a_stranger(MultiLock(client, ["a", "b", "c"], min_hold=60).acquire(timeout=0.2))
    lease = await MultiLock(client, ["a", "b", "c"]).acquire(timeout=2)
    assert await lease.release()


async def test_a_name_kept_among_several_is_not_held_by_any_holder(client: Redis, quick_sessions: None) -> None:
    await enter(MultiLock(client, ["a"], min_hold=60))
    async with MultiLock(client, ["b"]):
        now = await MultiLock(client, ["a", "b"]).statistics()
        assert (now.permits, now.holders) == (1, 1)
        assert now.kept_until is not None
    now = await MultiLock(client, ["a", "b"]).statistics()
    assert (now.permits, now.holders) == (1, 0)
    await MultiLock(client, ["a"]).revoke()


async def test_an_upgrade_ends_at_once(client: Redis, quick_sessions: None) -> None:
    rw = RWLock(client, "catalogue", min_hold=MIN)
    async with rw.upgradeable as lease:
        await enter(lease.upgrade())
        reading = await as_a_stranger(RWLock(client, "catalogue").read.acquire(timeout=MIN / 2))
        await reading.release()
    assert await rw.write.try_acquire() is None
    await free(rw.read)


async def test_the_last_of_several_holds_counts(client: Redis, quick_sessions: None) -> None:
    lock = RLock(client, "orders", min_hold=MIN)
    async with lock as lease:
        await enter(lock)
        assert lease.held
        assert await lease.renew()
    assert await as_a_stranger(lock.try_acquire()) is None
    await free(lock)
