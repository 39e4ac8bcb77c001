"""What a read-write lock promises beyond the conformance table: who may be inside together, and changes of mode."""

import asyncio
from itertools import permutations
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError, LockManager, RWLock
from tests.support.primitives import SHORT, STEADY, enter, queued

pytestmark = pytest.mark.usefixtures("quick_sessions")

MODES = ["read", "upgradeable", "write"]


@pytest.fixture
def rw(client: Redis) -> RWLock:
    """A read-write lock."""
    return RWLock(client, "catalogue")


async def test_no_reader_passes_an_earlier_writer(rw: RWLock) -> None:
    order: list[str] = []

    async def enter(mode: str) -> None:
        async with getattr(rw, mode):
            order.append(mode)

    async with rw.read:
        tasks = []
        for number, mode in enumerate(["write", "read", "read", "write", "read"]):
            tasks.append(asyncio.create_task(enter(mode)))
            await queued(rw.read, number + 1)
        assert await rw.read.try_acquire() is None
    await asyncio.gather(*tasks)
    assert order == ["write", "read", "read", "write", "read"]


async def test_locked_says_whether_a_holder_is_in_the_way(rw: RWLock) -> None:
    async def locked() -> list[bool]:
        return [await getattr(rw, mode).locked() for mode in MODES]

    seen = {"": await locked()}
    for mode in MODES:
        async with getattr(rw, mode):
            seen[mode] = await locked()
    assert seen == {
        "": [False, False, False],
        "read": [False, False, True],
        "upgradeable": [False, True, True],
        "write": [True, True, True],
    }


@pytest.mark.parametrize(("outer", "inner"), [*permutations(MODES, 2), *zip(MODES, MODES, strict=True)])
async def test_a_task_inside_that_enters_again_gets_an_error_at_once(rw: RWLock, outer: str, inner: str) -> None:
    """Even reading within reading: a writer that came between would wait for the one, and the other for it."""
    async with getattr(rw, outer):
        with pytest.raises(RuntimeError, match="would wait for itself"):
            await enter(getattr(rw, inner))
        assert await getattr(rw, inner).try_acquire() is None


async def test_a_readers_writer_lock_without_a_mode_cannot_be_acquired(rw: RWLock) -> None:
    assert not any(hasattr(rw, method) for method in ("acquire", "hold", "release"))
    itself: Any = rw
    with pytest.raises(TypeError, match=r"enter its \.read, \.write or \.upgradeable"):
        await enter(itself)


async def test_an_upgrade_is_alone_and_then_reads_beside_readers_again(rw: RWLock) -> None:
    async with rw.upgradeable as lease:
        async with lease.upgrade() as alone:
            assert await rw.read.locked()
            assert (alone.held, lease.held) == (True, True)
            assert alone.fencing_token > lease.fencing_token
        assert not await rw.read.locked()
        assert (alone.held, lease.held) == (False, True)


async def test_an_upgrade_waits_for_the_readers_and_goes_before_the_writers(rw: RWLock) -> None:
    order: list[str] = []

    async def write() -> None:
        async with rw.write:
            order.append("write")

    reader = await rw.read.acquire()
    async with rw.upgradeable as lease:
        writer = asyncio.create_task(write())
        await queued(rw.write, 1)
        asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(reader.release()))
        async with lease.upgrade():
            assert not reader.held
            order.append("upgrade")
    await writer
    assert order == ["upgrade", "write"]


@pytest.mark.parametrize("timeout", [0, 0.3])
async def test_an_upgrade_that_waits_too_long_leaves_the_lease_as_it_was(rw: RWLock, timeout: float) -> None:
    reader = await rw.read.acquire()
    async with rw.upgradeable as lease:
        with pytest.raises(AcquireTimeoutError):
            await enter(lease.upgrade(timeout=timeout))
        assert lease.held
        assert (await rw.read.statistics()).waiting == 0
        await reader.release()
        await enter(lease.upgrade(timeout=timeout and 5))


@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
async def test_a_lease_that_is_lost_while_its_upgrade_waits_is_a_lease_lost_error(client: Redis, on_lost: Any) -> None:
    rw = RWLock(client, "catalogue", ttl=SHORT, on_lost=on_lost)
    reader = await rw.read.acquire()
    with pytest.raises(LeaseLostError):
        async with rw.upgradeable as lease:
            asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(take_away(rw, client, lease)))
            await enter(lease.upgrade(timeout=10))
    await queued(rw.read, 0)
    await reader.release()


async def take_away(rw: RWLock, client: Redis, lease: Lease) -> None:
    """Let the server forget one lease."""
    await client.zrem("aiolocks:readwrite:{catalogue}", lease.token)


async def test_a_body_whose_upgrade_is_lost_is_cancelled(client: Redis) -> None:
    rw = RWLock(client, "catalogue", ttl=STEADY)
    async with rw.upgradeable as lease:
        with pytest.raises(LeaseLostError):
            async with lease.upgrade() as alone:
                await take_away(rw, client, alone)
                await asyncio.sleep(10)
        assert lease.held


async def test_what_cannot_change_its_mode_gets_an_error_instead_of_a_deadlock(rw: RWLock, client: Redis) -> None:
    async with rw.read as lease:
        with pytest.raises(RuntimeError, match=r"wait for each other for ever; use `upgradeable`"):
            lease.upgrade()
    async with LockManager(client).lock("catalogue") as lease:
        with pytest.raises(RuntimeError, match="only a lease of RWLock"):
            lease.upgrade()
        with pytest.raises(RuntimeError, match="only leases of RWLock"):
            await lease.downgrade()
    async with rw.upgradeable as lease, lease.upgrade() as alone:
        with pytest.raises(RuntimeError, match="would wait for itself"):
            await enter(lease.upgrade())
        with pytest.raises(RuntimeError, match="exclusive already"):
            alone.upgrade()
        with pytest.raises(RuntimeError, match="leaving its block"):
            await alone.downgrade()


async def test_two_tasks_upgrade_one_lease_in_turn(rw: RWLock) -> None:
    lease, inside = await rw.upgradeable.acquire(), 0

    async def alone() -> None:
        nonlocal inside
        for _ in range(3):
            async with lease.upgrade():
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.001)
                inside -= 1

    await asyncio.gather(alone(), alone(), alone())
    await lease.release()


async def test_a_writer_that_goes_on_as_reader_lets_readers_in_but_no_writer(rw: RWLock) -> None:
    async with rw.write as lease:
        reader = asyncio.create_task(rw.read.acquire())
        await queued(rw.read, 1)
        writer = asyncio.create_task(rw.write.acquire())
        await queued(rw.read, 2)
        await lease.downgrade()
        await (await reader).release()
        assert lease.held
        assert (await rw.read.statistics()).waiting == 1
    await (await writer).release()


async def test_an_upgradeable_lease_that_goes_on_as_reader_makes_room_for_the_next(rw: RWLock) -> None:
    async with rw.upgradeable as lease:
        assert await rw.upgradeable.locked()
        await lease.downgrade()
        await lease.downgrade()
        assert not await rw.upgradeable.locked()
        with pytest.raises(RuntimeError, match="read lease cannot be upgraded"):
            lease.upgrade()


async def test_a_task_that_went_on_as_reader_is_still_inside(rw: RWLock) -> None:
    async with rw.write as lease:
        await lease.downgrade()
        with pytest.raises(RuntimeError, match="would wait for itself"):
            await rw.write.acquire()
    await enter(rw.write)
