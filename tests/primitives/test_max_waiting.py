"""`max_waiting`: who finds so many waiting gets an error at once, and nothing of it stays in the queue (W26)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from redis.asyncio import Redis

import aiolocks
from aiolocks import HierarchicalLock, Lock, MultiLock, Once, QueueFullError, Redlock, RLock, RWLock, with_lock
from aiolocks._core.kinds import KINDS, Kind
from tests.support.heard import hearing
from tests.support.inside import session_id
from tests.support.lateness import bounded
from tests.support.primitives import STEADY, Make, as_a_stranger, each_with_a_queue, every_row_with_a_queue, queued

pytestmark = pytest.mark.usefixtures("quick_sessions")

T = TypeVar("T")


async def refused(asking: Callable[[], Coroutine[Any, Any, object]]) -> QueueFullError:
    """Return the error of a call that finds the queue full."""
    with pytest.raises(QueueFullError) as caught:
        async with bounded(5):
            await as_a_stranger(asking())
    return caught.value


async def take(lock: Any, **terms: Any) -> None:
    """Be granted it once, in a block."""
    async with lock.hold(**terms):
        pass


@every_row_with_a_queue
async def test_who_finds_as_many_waiting_is_refused_and_leaves_nothing(make: Make, stranger: Redis) -> None:
    leases = await make.fill()
    waiting = [as_a_stranger(take(make(client=client, max_waiting=2))) for client in (None, stranger)]
    await queued(make(), 2)
    for refuse in (
        lambda: take(make(max_waiting=2)),
        lambda: take(make(client=stranger), max_waiting=1),
        lambda: take(make(max_waiting=0)),
        lambda: take(make(), max_waiting=0, timeout=10),
    ):
        error = await refused(refuse)
        assert error.waiting in (0, 1, 2)
        assert (error.name, error.timeout) == (make.called("orders"), 0.0)
        assert isinstance(error, aiolocks.AcquireTimeoutError)
        assert error.retry_after is not None
        assert 0 < error.retry_after <= 30
        assert (f"full: {error.waiting} wait already" if error.waiting else "its queue has no room") in str(error)
    await queued(make(), 2)
    unbounded = as_a_stranger(take(make(max_waiting=2), max_waiting=None))
    await queued(make(), 3)
    for lease in leases:
        await lease.release()
    await asyncio.gather(*waiting, unbounded)
    await take(make(max_waiting=0))
    await queued(make(), 0)


async def test_readers_and_writers_count_together_and_an_upgrade_is_not_refused(client: Redis) -> None:
    rw = RWLock(client, "catalogue", max_waiting=1)
    async with rw.upgradeable as lease:
        reading = await as_a_stranger(rw.read.acquire())
        writing = as_a_stranger(take(rw.write))
        await queued(rw.read, 1)
        await refused(lambda: take(rw.write))
        await refused(lambda: take(rw.read))
        upgrading = asyncio.ensure_future(upgraded(lease))
        await queued(rw.read, 2)
        await reading.release()
        await upgrading
    await writing


async def upgraded(lease: Any) -> None:
    async with lease.upgrade():
        pass


async def test_the_holder_of_a_reentrant_lock_never_waits(client: Redis) -> None:
    lock = RLock(client, "orders", max_waiting=0)
    async with lock, lock, lock.hold(max_waiting=0):
        await refused(lambda: take(lock))


@pytest.mark.parametrize("full", [0, 1, 2])
async def test_of_several_names_any_full_queue_counts_and_the_others_are_given_back(client: Redis, full: int) -> None:
    names = ["a", "b", "c"]
    async with MultiLock(client, [names[full]]):
        waiting = as_a_stranger(take(MultiLock(client, [names[full]])))
        await queued(MultiLock(client, [names[full]]), 1)
        error = await refused(lambda: take(MultiLock(client, names, max_waiting=1)))
        assert (error.name, error.waiting) == ("a, b, c", 1)
        for name in names[:full] + names[full + 1 :]:
            assert not await MultiLock(client, [name]).locked()
    await waiting
    await take(MultiLock(client, names, max_waiting=0))


async def test_a_name_that_was_waited_for_is_given_back_too(client: Redis) -> None:
    first = await as_a_stranger(MultiLock(client, ["a"]).acquire())
    async with MultiLock(client, ["b"]):
        asking = as_a_stranger(refused(lambda: take(MultiLock(client, ["a", "b"], max_waiting=1))))
        await queued(MultiLock(client, ["a"]), 1)
        waiting = as_a_stranger(take(MultiLock(client, ["b"])))
        await queued(MultiLock(client, ["b"]), 1)
        await first.release()
        assert (await asking).waiting == 1
        assert not await MultiLock(client, ["a"]).locked()
    await waiting


async def test_a_full_queue_at_any_level_of_a_path_counts(client: Redis) -> None:
    table, row = HierarchicalLock(client, "shop"), HierarchicalLock(client, "shop/42", max_waiting=1)
    async with table.write:
        waiting = as_a_stranger(take(row.write))
        await queued(table.write, 1)
        error = await refused(lambda: take(row.read))
        assert (error.name, error.waiting) == ("shop/42", 1)
    await waiting


async def test_a_task_passes_a_full_queue_at_the_levels_that_it_holds(client: Redis) -> None:
    async with HierarchicalLock(client, "shop/1").write:
        waiting = as_a_stranger(take(HierarchicalLock(client, "shop").write))
        await queued(HierarchicalLock(client, "shop").write, 1)
        await take(HierarchicalLock(client, "shop/2", max_waiting=0).write)
    await waiting


@each_with_a_queue
async def test_a_waiter_that_the_server_has_forgotten_is_not_refused(make: Make, stranger: Redis) -> None:
    """It asks again, with its old ticket, and finds another in line, which was there before the first was forgotten."""
    (lease,) = await make.fill()
    waiting = as_a_stranger(take(make(client=stranger, max_waiting=1, ttl=STEADY)))
    await queued(make(), 1)
    another = as_a_stranger(take(make()))
    await queued(make(), 2)
    await make.client.delete(*[key async for key in make.client.scan_iter(f"*:q:{session_id(stranger)}")])
    await queued(make(), 2)
    await lease.release()
    await asyncio.gather(waiting, another)


async def test_a_refusal_is_a_time_out_for_those_who_listen(client: Redis) -> None:
    with hearing() as heard:
        async with Lock(client, "orders"):
            await refused(lambda: take(Lock(client, "orders", max_waiting=0)))
    assert [event.kind for event in heard if event.acquisition != heard[0].acquisition] == ["timed_out"]


async def test_a_managers_default_counts_where_there_is_a_queue(url: str) -> None:
    async with aiolocks.LockManager.from_url(url, max_waiting=0) as locks:
        async with locks.lock("orders"):
            await refused(lambda: take(locks.lock("orders")))
            waiting = as_a_stranger(take(locks.lock("orders", max_waiting=1)))
            await queued(locks.lock("orders"), 1)
        await waiting
        assert await locks.election("leader").run(leading) == 7
        assert (await locks.versioned("stock").read())[0] is None


async def leading(lease: object) -> int:
    return 7


async def test_a_decorated_function_is_not_called(client: Redis) -> None:
    @with_lock(client, "invoice:{number}", max_waiting=0)
    async def send(number: int) -> None:
        await refused(lambda: send(number))

    await send(7)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.queued or "max_waiting" in kind.without], ids=str)
async def test_a_kind_without_a_queue_has_no_such_option(client: Redis, kind: Kind) -> None:
    construct: Any = getattr(aiolocks, kind.class_name)
    with pytest.raises(TypeError, match="'max_waiting'"):
        construct([client] if kind.quorum else client, "orders", max_waiting=1)


async def test_a_call_that_never_waits_has_no_bound_and_a_bad_one_is_an_error(client: Redis) -> None:
    lock: Any = Lock(client, "orders")
    with pytest.raises(TypeError, match="it never waits"):
        lock.try_acquire(max_waiting=1)
    with pytest.raises(TypeError, match="its callers wait in no queue"):
        Redlock([client], "orders").hold(max_waiting=1)
    with pytest.raises(TypeError, match="Redlock has no 'max_waiting': its callers wait in no queue"):
        await Redlock([client], "orders").acquire(max_waiting=1)
    errors: dict[Any, type[Exception]] = {"1": TypeError, True: TypeError, 1.5: TypeError, -1: ValueError}
    for wrong, error in (errors | {10**9 + 1: ValueError}).items():
        with pytest.raises(error, match="max_waiting must be"):
            Lock(client, "orders", max_waiting=wrong)
        with pytest.raises(error, match="max_waiting must be"):
            lock.hold(max_waiting=wrong)
        with pytest.raises(error, match="max_waiting must be"):
            await RLock(client, "orders").acquire(max_waiting=wrong)


async def test_the_bound_of_one_once_refuses_no_caller_of_another_of_that_name(client: Redis, stranger: Redis) -> None:
    """In one process all callers of a name share one request. A process that is refused alone runs nothing either."""
    began, end = asyncio.Event(), asyncio.Event()

    async def run() -> int:
        began.set()
        await end.wait()
        return 1

    first = asyncio.create_task(Once(client, "rates", keep=0).run(run))
    await began.wait()
    await refused(lambda: Once(stranger, "rates", keep=0, max_waiting=0).run(run))
    bounded = asyncio.create_task(Once(stranger, "rates", keep=0, max_waiting=0).run(run))
    free = asyncio.create_task(Once(stranger, "rates", keep=0).run(run))
    with pytest.raises(QueueFullError):
        await bounded
    assert not free.done()
    end.set()
    assert (await first, await free) == (1, 1)
