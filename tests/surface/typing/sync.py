"""What type checkers must make of `aiolocks.sync`. Checked by mypy and pyright, never run."""

from collections.abc import Generator, Mapping
from datetime import timedelta
from typing import assert_type

from aiolocks import Holder, Outcome, Statistics, Waiter
from aiolocks.sync import Election, Hold, Lease, Lock, LockManager, MultiLock, Once, RLock, RWLock, Semaphore, Versioned


def lock(locks: LockManager) -> None:
    lock = locks.lock(
        "orders:42", ttl=10, acquire_timeout=timedelta(seconds=5), renew=False, on_lost="flag", max_waiting=1
    )
    assert_type(lock, Lock)
    with lock as lease:
        assert_type(lease, Lease)
    with lock.hold(timeout=5) as lease, lock.acquire(timeout=None) as other:
        assert_type((lease, other), tuple[Lease, Lease])
    assert_type(lock.hold(), Hold)
    assert_type(lock.acquire(), Lease)
    assert_type(lock.try_acquire(), Lease | None)
    assert_type(lock.locked(), bool)
    assert_type(lock.statistics(), Statistics)
    assert_type((lock.holders(), lock.waiters()), tuple[tuple[Holder, ...], tuple[Waiter, ...]])
    assert_type(lock.revoke(force=True, timeout=3, reason="deploy 1.7"), tuple[Holder, ...])
    assert_type(lease.note("row 500 of 900"), None)
    locks.rwlock("orders:42", note="May's report")
    lock.acquire(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    lock.acquire(blocking=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.lock("orders:42", watchdog="thread")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.lock("orders:42", on_lost="cancel")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def lease(lease: Lease) -> None:
    assert_type((lease.held, lease.remaining(), lease.fencing_tokens), tuple[bool, float, Mapping[str, int]])
    assert_type((lease.renew(ttl=5), lease.release(), lease.hand_off()), tuple[bool, bool, str])
    lease.guard(("SET", "key", "value"))
    lease.held = False  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def others(locks: LockManager) -> None:
    assert_type(locks.rlock("a"), RLock)
    assert_type(locks.multilock(["a", "b"]), MultiLock)
    assert_type(locks.rwlock("a"), RWLock)
    assert_type(locks.rwlock("a").read.acquire(timeout=1), Lease)
    semaphore = locks.semaphore("a", 3)
    assert_type(semaphore, Semaphore)
    assert_type(semaphore.acquire(permits=2, timeout=1), Lease)
    assert_type(semaphore.try_acquire(permits=2), Lease | None)
    with semaphore.hold(permits=2) as lease:
        assert_type(lease, Lease)
    versioned = locks.versioned("a")
    assert_type(versioned, Versioned)
    assert_type(versioned.write("17", "version"), str)
    versioned.update(lambda value: int(value or 0) + 1)
    with LockManager.from_url("redis://localhost", holder="billing", ttl=5) as manager:
        assert_type(manager, LockManager)


def loops(locks: LockManager) -> None:
    once = locks.once("rates", keep=timedelta(hours=1), errors="retry", dumps=str.encode, acquire_timeout=5)
    assert_type(once, Once)
    assert_type(once.run(lambda: [1], timeout=None, fingerprint="a"), list[int])
    assert_type(once.outcome(), Outcome | None)
    assert_type(once.forget(), None)
    assert_type((once.holders(), once.waiters()), tuple[tuple[Holder, ...], tuple[Waiter, ...]])
    assert_type(once.revoke(force=True), tuple[Holder, ...])
    once.run(lead)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    locks.once("rates", keep=1, track=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    limiter = locks.rate_limiter("api", 100, per=timedelta(minutes=1), acquire_timeout=5)
    with limiter as nothing:
        assert_type(nothing, None)
    assert_type(limiter.try_acquire(cost=2), bool)
    assert_type(limiter.statistics(), Statistics)
    election = locks.election("scheduler", ttl=10, max_hold=3600)
    assert_type(election, Election)
    assert_type(election.run(lead), str)
    assert_type(election.resign(timeout=1), bool)
    assert_type(election.leader(), Holder | None)
    assert_type(election.changes(), Generator[Holder | None, None, None])
    assert_type((election.is_leader, election.term), tuple[bool, int | None])
    election.run(lambda: 1)  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType]
    locks.election("scheduler", acquire_timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def lead(lease: Lease) -> str:
    return lease.name
