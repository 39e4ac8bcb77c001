"""W16 for every primitive, on every server: `revoke` stops who holds a name; only then is the next one granted it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, HierarchicalLock, Lease, LeaseLostError, Lock, RWLock
from tests.support.lateness import SLACK, in_time
from tests.support.primitives import SHORT, STEADY, Make, Row, as_a_stranger, every_row, exclusive_rows, free, queued

LONG = 20.0
"""Seconds of a TTL that no test waits for."""


class Body:
    """A task in a block, until the lease is lost."""

    def __init__(self, task: "asyncio.Task[LeaseLostError]", lease: Lease) -> None:
        self._task, self.lease = task, lease

    @classmethod
    async def enter(cls, make: Make, **options: Any) -> "Body":
        begun: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()

        async def work() -> LeaseLostError:
            with pytest.raises(LeaseLostError) as caught:
                async with make(**options) as lease:
                    begun.set_result(lease)
                    await asyncio.sleep(60)
            return caught.value

        task = as_a_stranger(work())
        return cls(task, await begun)

    async def end(self) -> LeaseLostError:
        return await asyncio.wait_for(self._task, 15)


@every_row
async def test_a_holder_is_stopped_long_before_its_ttl_and_told_and_then_it_is_gone(make: Make) -> None:
    body = await Body.enter(make, ttl=6.0)
    async with in_time(0.37 * 6.0 + SLACK * 0.3):  # where it is renewed
        [*holders] = await make().revoke(timeout=15)
        error = await body.end()
    assert body.lease.fencing_token in [holder.fencing_token for holder in holders]
    assert all(0 < holder.remaining <= 6.0 for holder in holders)
    assert (error.reason, error.fencing_token) == ("revoked", body.lease.fencing_token)
    await free(make())


@pytest.mark.rest
@pytest.mark.real_time
async def test_a_lease_that_a_thread_renews_is_revoked_too(make: Make) -> None:
    body = await Body.enter(make, ttl=STEADY, watchdog="thread")
    await make().revoke(timeout=15, reason="deploy 1.7")
    assert (await body.end()).reason == "revoked: deploy 1.7"


@every_row
async def test_where_no_one_holds_it_there_is_nothing_to_do(make: Make) -> None:
    assert await make().revoke(timeout=15) == ()
    assert await make().revoke(fencing_token=1, force=True) == ()
    assert not await make().locked()


@every_row
async def test_a_holder_that_ignores_a_revoke_keeps_its_lease_to_its_end_and_is_renewed_no_more(make: Make) -> None:
    lease = await make(ttl=SHORT, on_lost="flag").acquire()
    with pytest.raises(AcquireTimeoutError, match="revoked, but still held after 0 s") as caught:
        await make().revoke(timeout=0)
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= SHORT
    await make().revoke(timeout=15)
    assert lease.lost
    await free(make())


@exclusive_rows
async def test_the_next_in_line_is_granted_it_and_is_not_hit(make: Make) -> None:
    bodies = [await Body.enter(make, ttl=STEADY) for _ in range(make.places)]
    waiting = as_a_stranger(make(ttl=STEADY).acquire())
    if (await make().statistics()).waiting:  # where there is a line
        await queued(make(), 1)
    await make().revoke(timeout=15)
    lease = await asyncio.wait_for(waiting, 15)
    assert lease.fencing_token > max(body.lease.fencing_token for body in bodies)
    for body in bodies:
        await body.end()
    assert await lease.renew()
    await lease.release()


@every_row
async def test_one_is_meant_by_its_fencing_token(make: Make) -> None:
    leases = await make.fill()
    meant, *others = leases
    for fence in set(meant.fencing_tokens.values()):
        await make().revoke(fencing_token=fence, force=True)
    assert not await meant.renew()
    assert not meant.held
    await meant.release()  # the other parts, of one that has several
    for other in others:
        assert await other.renew()
        assert await other.release()


@every_row
async def test_by_force_it_ends_at_once_and_its_holder_is_told_at_its_next_renewal(make: Make) -> None:
    body = await Body.enter(make, ttl=STEADY)
    await make().revoke(force=True, timeout=5, reason="deploy 1.7")
    lease = await make().acquire(timeout=10)
    assert lease.fencing_token > body.lease.fencing_token
    error = await body.end()
    assert error.reason == "revoked: deploy 1.7"
    assert "revoked: deploy 1.7; stop acting on it" in str(error)
    assert await lease.release()


@every_row
async def test_a_renewal_by_hand_is_refused_too(make: Make) -> None:
    lease = await make(ttl=LONG).acquire()
    for reason in ("deploy\n1.7", "another, which comes too late"):
        with pytest.raises(AcquireTimeoutError):
            await make().revoke(timeout=0, reason=reason)
    assert not await lease.renew()
    with pytest.raises(LeaseLostError) as caught:
        lease.check()
    assert caught.value.reason == r"revoked: deploy\n1.7"
    assert not await lease.release()
    await free(make())


async def test_what_is_revoked_guards_nothing_and_is_not_handed_off(make: Make, row: Row) -> None:
    uses: dict[Callable[[Lease], Awaitable[object]], bool] = {
        lambda lease: lease.guard(("SET", make.key("guarded"), 1)): row.guards and row.slots == 1,
        lambda lease: lease.hand_off(): row.kind.handed_on,
    }
    for use in (use for use, can in uses.items() if can):
        lease = await make(ttl=LONG).acquire()
        with pytest.raises(AcquireTimeoutError):
            await make().revoke(timeout=0, reason="*deploy 1.7")
        with pytest.raises(LeaseLostError) as caught:
            await use(lease)
        assert caught.value.reason == "revoked: *deploy 1.7"
        await lease.release()
        await free(make())


async def test_a_block_that_ends_before_it_is_told_raises_nothing(make: Make) -> None:
    async with make(ttl=LONG):
        with pytest.raises(AcquireTimeoutError):
            await make().revoke(timeout=0)
    await free(make())


async def test_a_task_may_revoke_what_it_is_inside_of(make: Make) -> None:
    with pytest.raises(LeaseLostError) as caught:
        async with make(ttl=STEADY):
            await make().revoke(timeout=15)
            await asyncio.sleep(15)
    assert caught.value.reason == "revoked"


async def test_wrong_words_are_refused_before_anything_is_sent(make: Make) -> None:
    lease = await make().acquire()
    for wrong in (0, -1, 2**53):
        with pytest.raises(ValueError, match="fencing_token must be between"):
            await make().revoke(fencing_token=wrong)
    with pytest.raises(TypeError, match="fencing_token must be an int"):
        await make().revoke(fencing_token="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be >= 0"):
        await make().revoke(timeout=-1)
    with pytest.raises(ValueError, match="reason must have at most 200 characters, not 201"):
        await make().revoke(reason="x" * 201)
    with pytest.raises(TypeError, match="reason must be a str"):
        await make().revoke(reason=17)  # type: ignore[arg-type]
    assert await lease.release()


# What the primitives have of their own.


async def test_what_is_revoked_changes_its_mode_no_more_and_is_lost(client: Redis) -> None:
    rw = RWLock(client, "orders", ttl=LONG)
    changes: list[tuple[str, Callable[[Lease], Awaitable[object]], str | None, str]] = [
        ("upgradeable", lambda lease: lease.upgrade().__aenter__(), None, "revoked"),
        ("write", lambda lease: lease.downgrade(), "deploy 1.7", "revoked: deploy 1.7"),
    ]
    for mode, change, reason, says in changes:
        lease = await getattr(rw, mode).acquire()
        with pytest.raises(AcquireTimeoutError):
            await rw.read.revoke(timeout=0, reason=reason)
        with pytest.raises(LeaseLostError) as caught:
            await change(lease)
        assert caught.value.reason == says
        assert lease.lost
        await lease.release()


async def test_a_holder_of_another_library_is_revoked_by_force_only(client: Redis) -> None:
    await client.set("aiolocks:lock:{orders}", "somebody", px=10_000)
    with pytest.raises(RuntimeError, match="force=True"):
        await Lock(client, "orders").revoke(timeout=0)
    await Lock(client, "orders").revoke(force=True, timeout=0)
    await free(Lock(client, "orders"))


async def test_a_whole_path_goes_with_one_level(client: Redis) -> None:
    lease = await HierarchicalLock(client, "shop/orders/42", ttl=LONG).write.acquire()
    with pytest.raises(AcquireTimeoutError):
        await HierarchicalLock(client, "shop/orders").read.revoke(timeout=0)
    assert not await lease.renew()
    await lease.release()
    async with HierarchicalLock(client, "shop").write.hold(timeout=5):
        pass
