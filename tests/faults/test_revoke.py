"""W16 in bad times: whatever is lost or stands still, no two are inside together unless by force."""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lock, Semaphore
from aiolocks.testing import FaultProxy, check_exclusion, read_history
from tests.faults.support.asking import UNREACHABLE, granted_at
from tests.faults.support.kinds import Kind, make
from tests.faults.support.residue import wait_until_only_residue
from tests.support.lateness import SLACK, assert_within, measured_lag
from tests.support.primitives import queued
from tests.support.workers import ACQUIRED, holding, spawn

TTL = 1.5
LONG = 20.0
"""Seconds of a TTL that no test waits for."""


kinds = pytest.mark.parametrize("kind", [Lock, Semaphore])


@kinds
@pytest.mark.parametrize("force", [False, True], ids=["", "force"])
async def test_revoke_whose_reply_is_lost_asks_again_and_hits_no_one_else(
    redis: Redis, proxy: FaultProxy, client: Redis, kind: Kind, force: bool
) -> None:
    """The next in line may have it by the time of the second request."""
    lease = await make(kind, redis, "told", ttl=LONG).acquire()
    revoking = make(kind, client, "told", ttl=LONG)
    await revoking.statistics()
    asked = 0

    def lose_what_follows_the_look(request: bytes) -> None:
        nonlocal asked
        if b"EVAL" in request and b"{told}" in request:
            asked += 1
            if asked == 2:  # the first one only looks
                proxy.drop_next_reply(b"{told}")

    proxy.on_request = lose_what_follows_the_look
    waiting = asyncio.create_task(make(kind, redis, "told", ttl=LONG).acquire())
    await queued(make(kind, redis, "told", ttl=LONG), 1)
    told = asyncio.create_task(revoking.revoke(force=force, timeout=15))
    if not force:
        while await lease.renew():
            await asyncio.sleep(0.005)
        assert not waiting.done(), "it is held until its holder has stopped"
        await lease.release()
    following = await waiting
    assert [holder.fencing_token for holder in await told] == [lease.fencing_token]
    assert asked > 2, "a reply was lost"
    assert not await lease.renew()
    assert await following.renew()
    assert await following.release()


@kinds
async def test_a_revoke_that_is_cut_off_raises_and_has_revoked_the_lease_or_not_at_all(
    redis: Redis, proxy: FaultProxy, kind: Kind
) -> None:
    lease = await make(kind, redis, "told", ttl=LONG).acquire()
    async with Redis.from_url(proxy.url, socket_timeout=0.3) as client:
        revoking = make(kind, client, "told", ttl=LONG)
        await revoking.statistics()
        proxy.refuse = True
        proxy.cut_all()
        with pytest.raises((*UNREACHABLE, AcquireTimeoutError)):
            await revoking.revoke(timeout=1)
        assert await lease.renew()
        proxy.refuse = False
    assert await lease.release()


@kinds
async def test_a_holder_that_stands_still_is_revoked_at_its_end(redis: Redis, redis_url: str, kind: Kind) -> None:
    """SIGSTOP: it cannot be told, so no one else is granted it before it must have stopped by its own clock."""
    mine = make(kind, redis, "told", ttl=LONG)
    made = f"locks.lock('told', ttl={TTL})" if kind is Lock else f"locks.semaphore('told', 1, ttl={TTL})"
    with holding(redis_url, made) as process:
        assert await process.says() == "holds"
        process.stop()
        async with measured_lag() as lag:
            (holder,) = await mine.holders()
            seen_at = time.monotonic()
            waiting = asyncio.create_task(granted_at(make(kind, redis, "told", ttl=LONG)))
            await queued(mine, 1)
            await mine.revoke(timeout=15)
            granted = await waiting
        assert granted - seen_at > holder.remaining - 0.02 - lag.worst
        assert_within(granted - seen_at, holder.remaining + SLACK * 0.3 + lag.worst)


async def test_holders_revoked_again_and_again_never_overlap(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    """C1 by a clock that all processes share; what follows a revoked holder has a larger fencing token."""
    log, lock, turns = tmp_path / "log", Lock(redis, "told"), 10
    role = ["-m", "tests.faults.support.worker", "stop", redis_url, "told", "1.2", str(log)]
    with ExitStack() as stack:
        for _ in range(3):
            process = stack.enter_context(spawn(*role))
            assert await process.says() == "up"
        revoked = list[int]()
        async with asyncio.timeout(50):
            while len(revoked) < turns:
                revoked += [holder.fencing_token for holder in await lock.revoke(timeout=15)]
                await asyncio.sleep(0.01)
    records = read_history(log)
    begun = [record.fence for record in records if record.event == ACQUIRED]
    told = [record.fence for record in records if record.event == "revoked"]
    print(f"{len(revoked)} revoked, {len(told)} told so, of {len({record.pid for record in records})} processes")
    assert check_exclusion(records) == []
    assert begun == sorted(set(begun))
    assert revoked == sorted(set(revoked)), "each was revoked once"
    assert set(told) <= set(revoked)
    assert len(told) >= turns - 2, "killed at the end, the last may not have said it"
    await wait_until_only_residue(redis, within=5.0)
