"""What type checkers must make of the public API. Checked by mypy and pyright, never run."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, assert_type

from redis import exceptions as redis_exceptions
from redis.asyncio import Redis

import aiolocks
from aiolocks import Election, Holder, Lease, Lock, LockManager, MultiLock, Redlock, RLock, RWLock, Semaphore, with_lock
from aiolocks.events import Event, on_event
from aiolocks.otel import instrument


def made(redis: Redis, several: list[Redis]) -> None:
    lock = Lock(redis, "orders:42", ttl=10, acquire_timeout=5.0, on_lost="flag", renew=False, max_hold=60)
    assert_type(lock, Lock)
    assert_type(Lock(redis, "orders:42", watchdog="task", prefix="app:"), Lock)
    rlock = RLock(redis, "orders:42", ttl=10, acquire_timeout=5.0, on_lost="flag", watchdog="thread", prefix="app:")
    assert_type(rlock, RLock)
    semaphore = Semaphore(redis, "scraper", 10, ttl=10, acquire_timeout=None, on_lost="cancel", max_hold=None)
    assert_type(semaphore, Semaphore)
    assert_type(MultiLock(redis, ["account:1", "account:2"], ttl=10, acquire_timeout=5).names, tuple[str, ...])
    assert_type(Redlock(several, "orders:42", ttl=10, acquire_timeout=5), Redlock)
    assert_type(RWLock(redis, "catalogue", ttl=10, on_lost="flag").name, str)
    assert_type(aiolocks.HierarchicalLock(redis, "shop/orders", ttl=10, on_lost="flag").name, str)


async def every_lock(lock: Lock | RLock | Semaphore | MultiLock | Redlock) -> None:
    """A union is checked by each of its members."""
    assert_type(lock.name, str)
    async with lock as lease, lock.hold(timeout=5) as again, lock.hold(timeout=None), lock.hold():
        assert_type(lease, Lease)
        assert_type(again, Lease)
    assert_type(await lock.acquire(), Lease)
    assert_type(await lock.acquire(timeout=5), Lease)
    assert_type(await lock.acquire(timeout=None), Lease)
    assert_type(await lock.try_acquire(), Lease | None)
    assert_type(await lock.locked(), bool)
    now = await lock.statistics()
    assert_type(now, aiolocks.Statistics)
    assert_type(now.name, str)
    for number in (now.permits, now.holders, now.waiting, now.fencing_token, now.limit):
        assert_type(number, int)
    await lock.release()


async def every_mode(rw: RWLock, path: aiolocks.HierarchicalLock) -> None:
    for mode in (rw.read, rw.write, rw.upgradeable, path.read, path.write):
        async with mode as lease, mode.hold(timeout=5) as again:
            assert_type(lease, Lease)
            assert_type(again, Lease)
        assert_type(await mode.acquire(timeout=None), Lease)
        assert_type(await mode.try_acquire(), Lease | None)
        assert_type(await mode.locked(), bool)
        assert_type(await mode.statistics(), aiolocks.Statistics)
    async with rw.upgradeable as lease, lease.upgrade(timeout=5) as alone:
        assert_type(alone, Lease)
    await lease.downgrade()
    async with rw:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass


async def what_one_name_has(lock: Lock) -> None:
    assert_type(await lock.adopt("text"), Lease)
    assert_type(await lock.touch("text"), int | None)
    assert_type(await lock.touch(b"text", ttl=timedelta(seconds=90)), int | None)
    assert_type(await lock.drop("text"), bool)
    assert_type(await lock.holders(), tuple[Holder, ...])
    assert_type(await lock.waiters(), tuple[aiolocks.Waiter, ...])
    assert_type(await lock.revoke(), tuple[Holder, ...])
    assert_type(await lock.revoke(fencing_token=7, force=True, timeout=timedelta(seconds=5)), tuple[Holder, ...])


async def acquire_as_a_coroutine_and_as_a_block(lock: Lock, semaphore: Semaphore, rw: RWLock) -> None:
    async with lock.acquire(timeout=5) as lease, rw.read.acquire() as another:
        assert_type(lease, Lease)
        assert_type(another, Lease)
    async with semaphore.acquire(permits=2, timeout=None) as lease:
        assert_type(lease, Lease)
    task = asyncio.create_task(lock.acquire())
    assert_type(await task, Lease)
    assert_type(await asyncio.wait_for(lock.acquire(timeout=5), 1), Lease)
    assert_type(await asyncio.gather(lock.acquire(), semaphore.acquire(permits=2)), tuple[Lease, Lease])
    assert_type(await asyncio.shield(lock.acquire()), Lease)
    assert_type(await asyncio.ensure_future(lock.acquire()), Lease)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(lock.acquire())
    assert_type(task.result(), Lease)
    async with AsyncExitStack() as stack:
        for block in (lock, semaphore, lock.hold(timeout=5), semaphore.hold(permits=2), lock.acquire(), lease):
            assert_type(await stack.enter_async_context(block), Lease)
    async with await lock.acquire() as lease:
        assert_type(lease, Lease)


async def calls_without_await(lock: Lock, semaphore: Semaphore, rw: RWLock, path: aiolocks.HierarchicalLock) -> None:
    if lock.try_acquire():  # type: ignore[truthy-bool]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    if lease := semaphore.try_acquire(permits=2):  # type: ignore[truthy-bool]  # pyright: ignore[reportGeneralTypeIssues]
        print(lease)
    if not lock.locked():  # type: ignore[truthy-bool]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    while rw.read.locked() or path.write.locked():  # type: ignore[truthy-bool]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    if lock.acquire():  # type: ignore[truthy-bool]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    with lock.acquire():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    async with lock.try_acquire():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    if await lock.try_acquire() and not await lock.locked():
        assert_type(await asyncio.create_task(lock.try_acquire()), Lease | None)
        assert_type(await asyncio.wait_for(semaphore.locked(), 1), bool)
        assert_type(await asyncio.gather(lock.try_acquire(), rw.read.locked()), tuple[Lease | None, bool])


class AnyLock(Protocol):
    """As a user writes it, to have a double of a lock in tests or another implementation."""

    @property
    def name(self) -> str: ...
    async def acquire(self, *, timeout: float | None = ...) -> Lease: ...
    async def try_acquire(self) -> Lease | None: ...
    async def locked(self) -> bool: ...
    async def release(self) -> None: ...


class AnyAwaitable(Protocol):
    """The same for what need not be a coroutine."""

    def acquire(self, *, timeout: float | None = ...) -> Awaitable[Lease]: ...
    def try_acquire(self) -> Coroutine[Any, Any, Lease | None]: ...
    def locked(self) -> Awaitable[bool]: ...


def locks_by_protocol(
    lock: Lock | RLock | Semaphore | MultiLock | Redlock, rw: RWLock, path: aiolocks.HierarchicalLock
) -> None:
    locks: list[AnyLock] = [lock, rw.read, rw.write, path.read, path.write]
    awaitable: list[AnyAwaitable] = [lock, rw.read, rw.write, path.read, path.write]
    assert locks
    assert awaitable


async def names_of_other_libraries(lock: Lock, lease: Lease, rw: RWLock, locks: LockManager) -> None:
    """Type checkers know nothing of the hints that these get at run time."""
    lock(timeout=5)  # type: ignore[operator]  # pyright: ignore[reportCallIssue]
    lock.extend  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: B018
    lease.expires_at  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: B018
    rw.acquire  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: B018
    locks.rw_lock  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: B018
    aiolocks.LockLost  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: B018
    lock.acquire().fencing_token  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # noqa: B018
    await lock.acquire(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def weights(semaphore: Semaphore) -> None:
    async with semaphore.hold(permits=3, timeout=5) as lease:
        assert_type(lease, Lease)
    assert_type(await semaphore.try_acquire(permits=2), Lease | None)
    await semaphore.resize(20)
    assert_type(await semaphore.pause(30), float)
    assert_type(await semaphore.resume(), bool)
    assert_type((await semaphore.statistics()).paused, float)


async def waiting_rooms(redis: Redis, locks: LockManager) -> None:
    async with Lock(redis, "a", max_waiting=20).hold(max_waiting=None), locks.semaphore("b", 2, max_waiting=0) as lease:
        assert_type(lease, Lease)
    assert_type(await RWLock(redis, "a", max_waiting=20).read.acquire(timeout=5, max_waiting=1), Lease)
    with_lock(locks, "a", kind=Semaphore, limit=3, max_waiting=20)
    await Lock(redis, "a").try_acquire(max_waiting=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Redlock([redis], "a", max_waiting=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def notes(redis: Redis, locks: LockManager, error: aiolocks.AcquireTimeoutError, event: Event) -> None:
    assert_type(error.holders, tuple[Holder, ...] | None)
    assert_type(event.note, str | None)
    async with Lock(redis, "a", note="May's report") as lease, locks.semaphore("b", 2, note="x").hold():
        assert_type(await lease.note("row 500 of 900"), None)
    for holder in await Redlock([redis], "a", note=None).revoke(reason="deploy 1.7"):
        assert_type(holder.note, str | None)
    for waiter in await locks.election("a", note="x").waiters():
        assert_type((waiter.note, waiter.position), tuple[str | None, int])
    with_lock(locks, "a", note="x")
    Lock(redis, "a", note=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    locks.rate_limiter("a", 1, per=1, note="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def lease(lease: Lease) -> None:
    assert_type((lease.name, lease.token), tuple[str, str])
    assert_type((lease.fencing_token, lease.fencing_tokens), tuple[int, Mapping[str, int]])
    assert_type((lease.remaining(), lease.held, lease.lost), tuple[float, bool, bool])
    lease.check()
    assert_type(await lease.wait_lost(), bool)
    assert_type(await lease.renew(), bool)
    assert_type(await lease.renew(60), bool)
    assert_type(await lease.hand_off(), str)
    assert_type(await lease.hand_off(ttl=60), str)
    assert_type(await lease.release(), bool)
    async with lease as same:
        assert_type(same, Lease)


async def guard(lease: Lease, key: bytes) -> None:
    answers = await lease.guard(("SET", key, 0.5), ["INCRBY", "n", 1], (b"GET", "k"))
    first: object = answers[0]
    assert isinstance(first, bytes | str | int | list | None)
    for answer in answers:
        if isinstance(answer, int):
            assert_type(answer, int)


async def versioned(redis: Redis) -> None:
    stock = aiolocks.Versioned(redis, "stock:42", expire=60, prefix="app:")
    assert_type(stock.key, str)
    value, version = await stock.read()
    assert_type(value, bytes | str | None)
    assert_type(version, str)
    assert_type(await stock.write(b"1", version), str)

    def one_more(value: bytes | None) -> int:
        return int(value or 0) + 1

    async def louder(value: str | None) -> str:
        return (value or "") + "!"

    def either(value: bytes | str | None) -> bytes | str:
        return value or b""

    assert_type(await stock.update(one_more, attempts=5), tuple[bytes | str | int | float, str])
    await stock.update(louder)
    await stock.update(either)
    await stock.update(lambda value: int(value or 0) - 1)


def decorated_with_options(redis: Redis, locks: LockManager, several: list[Redis]) -> None:
    minute = timedelta(minutes=1)
    with_lock(redis, "a", ttl=minute, acquire_timeout=None, on_lost="flag", renew=True, max_hold=minute, replicas=1)
    with_lock(redis, "a", min_uptime=minute, track=True, min_hold=minute)
    with_lock(redis, "a", kind=RLock, watchdog="thread", max_stall=5, prefix="app:")
    with_lock(locks, "a", kind=Semaphore, limit=3, ttl=5)
    with_lock(lambda: redis, "a", kind=partial(Semaphore, limit=3), ttl=5)
    with_lock(lambda: locks, ["a", "b"], kind=MultiLock, ttl=5)
    with_lock(several, "a", kind=Redlock, ttl=5)
    with_lock(redis, "a", kind=reading, ttl=5)
    with_lock(redis, "a", kind=lambda client, name, **_: RWLock(client, name).write)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def reading(client: Redis, name: str, **options: Any) -> AbstractAsyncContextManager[Lease]:
    return RWLock(client, name, **options).read


def wrongly_decorated(redis: Redis, locks: LockManager, several: list[Redis]) -> None:
    """What passed every type checker once, and failed when the program ran."""
    with_lock(redis, "a", tll=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with_lock(redis, "a", ttl="5")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    with_lock(redis, "a", timeout=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with_lock(redis, "a", limit=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with_lock(redis, "a", kind=RLock, tll=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with_lock(locks, "a", kind=Semaphore)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    with_lock(locks, "a", kind=Semaphore, limit="5")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    with_lock(locks, "a", kind=Semaphore, limit=5, track=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with_lock(locks, "a", kind=Semaphore, limit=5, tll=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with_lock(redis, ["a", "b"], ttl=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    with_lock(redis, ["a", "b"], kind=MultiLock, tll=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    with_lock(redis, "a", kind=Redlock)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    with_lock(several, "a", kind=Redlock, min_uptime=60, min_hold=60)
    with_lock(several, "a", kind=Redlock, replicas=1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    with_lock(redis, "a", kind=RWLock)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    with_lock(redis, "a", kind=aiolocks.HierarchicalLock)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    with_lock(redis, "a", kind=aiolocks.Versioned)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]


def wrong_options(redis: Redis, locks: LockManager) -> None:
    Lock(redis, "a", tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Lock(redis, "a", timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Lock(redis, "a", ttl="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Lock(redis, "a", limit=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RLock(redis, "a", tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RWLock(redis, "a", tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Semaphore(redis, "a", 5, tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    MultiLock(redis, ["a"], tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aiolocks.HierarchicalLock(redis, "a", tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Redlock([redis], "a", replicas=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    LockManager(redis, tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    LockManager(redis, on_lost="raise")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    LockManager.from_url("memory://", tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.lock("a", tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.rlock("a", tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.rwlock("a", tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.semaphore("a", 5, tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.multilock(["a"], tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.hierarchical("a", tll=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.versioned("a", ttl=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def wrong_calls(lock: Lock, semaphore: Semaphore, rw: RWLock, lease: Lease) -> None:
    lock.hold(ttl=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    lock.hold(timeout="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    lock.hold(permits=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await lock.acquire(blocking_timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await lock.try_acquire(timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    semaphore.hold(permit=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    rw.read.hold(acquire_timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await lease.renew("60")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def timedeltas(redis: Redis, lease: Lease) -> None:
    minute = timedelta(minutes=1)
    lock = Lock(redis, "a", ttl=minute, acquire_timeout=minute, max_hold=minute, max_stall=minute)
    async with lock.hold(timeout=minute), lease.upgrade(timeout=minute):
        assert_type(await lock.acquire(timeout=minute), Lease)
        assert_type(await Semaphore(redis, "a", 3).acquire(permits=2, timeout=minute), Lease)
        assert_type(await lease.renew(minute), bool)
    aiolocks.Versioned(redis, "stock", expire=minute)
    LockManager(redis, ttl=minute).lock("a", acquire_timeout=minute)


def decorated(redis: Redis, locks: LockManager) -> None:
    @with_lock(redis, "invoice:{number}", ttl=5)
    async def send(number: int, *, copy: bool = False) -> float:
        return 0.5

    @with_lock(lambda: locks, "{name}", kind=Semaphore, limit=3)
    async def fetch(name: str) -> None: ...

    async def called() -> None:
        assert_type(await send(1, copy=True), float)
        assert_type(await fetch("a"), None)
        await send("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await fetch()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

    called().close()


async def once(redis: Redis, locks: LockManager) -> None:
    rates = aiolocks.Once(redis, "rates", keep=timedelta(hours=1), dumps=str.encode, loads=bytes.decode)

    async def fetch() -> dict[str, float]:
        return {}

    async def fetch_for(day: str) -> list[float]:
        return [float(day)]

    assert_type(await rates.run(fetch, timeout=5, fingerprint="a"), dict[str, float])
    assert_type(await rates.run(lambda: fetch_for("monday")), list[float])
    await rates.run(fetch())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await rates.outcome(), aiolocks.Outcome | None)
    assert_type(await rates.holders(), tuple[Holder, ...])
    aiolocks.Once(redis, "rates")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    aiolocks.Once(redis, "rates", keep=1, on_lost="flag")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.once("rates", keep=1, min_hold=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    decorated = aiolocks.once(locks, "rates:{day}", keep=3600, errors="retry")(fetch_for)
    assert_type(await decorated("monday"), list[float])
    await decorated(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    try:
        await decorated("monday")
    except (aiolocks.OnceFailedError, aiolocks.OutcomeMismatchError) as error:
        assert_type(error.name, str)


async def manager(redis: Redis) -> None:
    locks = LockManager(redis, prefix="myapp:", ttl=10)
    client = locks.client
    assert_type(client, Redis)  # type: ignore[unused-awaitable]  # a client can be awaited, but need not be
    assert_type(locks.lock("orders:42", ttl=5), Lock)
    assert_type(locks.multilock(["a", "b"], ttl=5), MultiLock)
    assert_type(locks.once("rates", keep=3600, errors="retry"), aiolocks.Once)
    assert_type(locks.rlock("orders:42", ttl=5), RLock)
    assert_type(locks.semaphore("scraper", 10, acquire_timeout=None), Semaphore)
    assert_type(locks.versioned("stock:42", expire=5), aiolocks.Versioned)
    assert_type(LockManager.from_url("memory://", on_lost="flag"), LockManager)
    async with LockManager.from_url("redis://localhost") as locks:
        assert_type(locks, LockManager)
    await locks.aclose()


async def election(redis: Redis, locks: LockManager) -> None:
    async def lead(lease: Lease) -> str:
        return lease.name

    election = Election(redis, "scheduler", ttl=timedelta(seconds=10), max_hold=3600, watchdog="thread", track=True)
    assert_type(locks.election("scheduler", ttl=5), Election)
    assert_type(await election.run(lead), str)
    assert_type(await election.resign(timeout=5), bool)
    assert_type((election.is_leader, election.term), tuple[bool, int | None])
    assert_type(await election.leader(), Holder | None)
    async for leader in election.changes():
        assert_type(leader, Holder | None)
    Election(redis, "scheduler", on_lost="flag")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    async with election:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass


async def rate_limiter(redis: Redis, locks: LockManager) -> None:
    limiter = aiolocks.RateLimiter(
        redis, "api", 100, per=timedelta(minutes=1), acquire_timeout=5, max_waiting=9, prefix="mine:"
    )
    assert_type(locks.rate_limiter("api", 100, per=60, acquire_timeout=None), aiolocks.RateLimiter)
    async with limiter as nothing:
        assert_type(nothing, None)
    assert_type(await limiter.acquire(cost=2, timeout=5), None)
    assert_type(await limiter.try_acquire(cost=2), bool)
    assert_type(await limiter.statistics(), aiolocks.Statistics)
    aiolocks.RateLimiter(redis, "api", 100)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.rate_limiter("api", 100, per=60, ttl=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def errors(
    busy: aiolocks.AcquireTimeoutError, full: aiolocks.QueueFullError, lost: aiolocks.LeaseLostError,
    refused: aiolocks.LimitMismatchError, conflict: aiolocks.VersionConflictError, too_few: aiolocks.QuorumError,
) -> None:  # fmt: skip
    for error in (busy, full, lost, refused, conflict, too_few):
        assert_type(error.name, str)
    assert_type((busy.timeout, busy.retry_after), tuple[float, float | None])
    assert_type((full.waiting, full.retry_after), tuple[int, float | None])
    assert_type((lost.fencing_token, lost.reason), tuple[int, str])
    assert_type((refused.permits, refused.limit), tuple[int, int])
    assert_type((conflict.expected, conflict.actual), tuple[str, str])
    assert_type(too_few.outcomes, Mapping[str, str])
    ours: tuple[aiolocks.LockError, aiolocks.LockError] = (conflict, refused)
    of_redis_py: tuple[redis_exceptions.LockNotOwnedError, redis_exceptions.LockError] = (lost, refused)
    of_python: tuple[TimeoutError, ValueError] = (busy, refused)
    print(ours, of_redis_py, of_python)


def events(event: Event) -> None:
    assert_type((event.name, event.primitive, event.seconds), tuple[str, str, float])
    assert_type((event.fencing_token, event.acquisition), tuple[int, int])
    if event.kind in ("lost", "revoked", "timed_out"):
        assert_type(on_event(events), Callable[[], None])
    assert_type(instrument(), Callable[[], None])
    assert_type(instrument(name_of=lambda name: name.partition(":")[0]), Callable[[], None])


assert_type(aiolocks.__version__, str)
