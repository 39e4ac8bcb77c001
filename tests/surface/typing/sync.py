"""What type checkers must make of `aiolocks.sync`. Checked by mypy and pyright, never run."""

from collections.abc import Mapping
from datetime import timedelta
from typing import assert_type

from aiolocks import Holder, Statistics, Waiter
from aiolocks.sync import Hold, Lease, Lock, LockManager, MultiLock, RLock, RWLock, Semaphore, Versioned


def lock(locks: LockManager) -> None:
    lock = locks.lock("orders:42", ttl=10, acquire_timeout=timedelta(seconds=5), renew=False, on_lost="flag")
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
    assert_type(lock.holders(), tuple[Holder, ...])
    assert_type(lock.waiters(), tuple[Waiter, ...])
    assert_type(lock.revoke(force=True, timeout=3), tuple[Holder, ...])
    lock.acquire(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    lock.acquire(blocking=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.lock("orders:42", watchdog="thread")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    locks.lock("orders:42", on_lost="cancel")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def lease(lease: Lease) -> None:
    assert_type(lease.held, bool)
    assert_type(lease.remaining(), float)
    assert_type(lease.fencing_tokens, Mapping[str, int])
    assert_type(lease.renew(ttl=5), bool)
    assert_type(lease.release(), bool)
    assert_type(lease.hand_off(), str)
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
