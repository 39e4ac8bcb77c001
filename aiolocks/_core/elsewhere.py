"""What other libraries call it: an AttributeError for such a name says what it is called here.

Any other name that is missing gets Python's own AttributeError; `hasattr`, `dir`, copies and mocks see no difference.
"""

import sys
from opcode import opmap
from typing import TYPE_CHECKING, Any, NoReturn

_IMPORT_FROM = opmap["IMPORT_FROM"]
_ANY_CASE = str.maketrans("", "", "_")


def _names(table: dict[str, str]) -> dict[str, str]:
    """Return *table*, which has several names in each key, with one in each, as `_plain` writes it."""
    return {_plain(name): hint for names, hint in table.items() for name in names.split()}


def _plain(name: str) -> str:
    """Return *name* as the tables have it: `try_lock` and `tryLock` are one."""
    return name.translate(_ANY_CASE).lower()


_OF_LEASE = "use that of the lease, which `async with` and acquire() give: lease."

_ACQUIRABLE = _names({
    "extend reacquire refresh renew prolong keep_alive touch":
        "a lease is renewed until it is released; by hand: await lease.renew(60), of what acquire() returned",
    "owned is_owned held is_held is_held_by_current_thread acquired is_acquired is_mine":
        "of what `async with` and acquire() give, lease.held says it; await lock.locked() says it of any holder",
    "locked_by owner owner_id get_owner get_owner_id holder held_by": "await lock.holders() says who holds it",
    "force_release force_unlock reset break_lock steal": "await lock.revoke() takes it from its holders",
    "info status state stats get_info": "use await lock.statistics(), or await lock.holders()",
    "is_locked": "use await lock.locked()",
    "expires_at expires_in expiry ttl get_ttl pttl remaining remaining_ttl remain_time_to_live time_left":
        "of what `async with` and acquire() give, lease.remaining() says how many seconds are left",
    "try_lock acquire_nowait acquire_non_blocking trylock": "use await lock.try_acquire(): a lease, or None",
    "lock acquire_lock get_lock": "use `async with lock:`, or lease = await lock.acquire()",
    "unlock release_lock do_release": "use await lock.release(), or await lease.release()",
    "local token identifier": f"{_OF_LEASE}token",
    "fence fencing_token fencing_tokens": f"{_OF_LEASE}fencing_token",
    "check": f"{_OF_LEASE}check()",
    "lost": f"{_OF_LEASE}lost",
    "guard": f"{_OF_LEASE}guard(...)",
    "wait_lost on_lost lost_event": f"{_OF_LEASE}wait_lost()",
    "upgrade downgrade": "leases of RWLock.upgradeable have it: async with lease.upgrade(): ...",
    "hand_off transfer": "its lease has it: text = await lease.hand_off(), and elsewhere await lock.adopt(text)",
    "waiting queue_length has_queued_threads has_waiters":
        "use (await lock.statistics()).waiting, or await lock.waiters()",
    "close aclose destroy": "there is nothing to close: it keeps no task or connection once nothing is held or awaited",
    "lock_name key resource": "use lock.name",
})  # fmt: skip

_SEMAPHORE = _ACQUIRABLE | _names({
    "limit max_value total_tokens bound_value":
        "use (await semaphore.statistics()).limit, and await semaphore.resize(n)",
    "value available available_permits available_tokens remaining_permits free":
        "use `now = await semaphore.statistics()`, and then now.limit - now.permits",
    "borrowed_tokens acquired_permits": "use (await semaphore.statistics()).permits",
    "set_limit set_permits try_set_permits add_permits reduce_permits": "use await semaphore.resize(n)",
})  # fmt: skip

_RWLOCK = _names({
    "read_lock reader reader_lock rlock acquire_read read_acquire gen_rlock shared":
        "use rw.read: `async with rw.read:`",
    "write_lock writer writer_lock wlock acquire_write write_acquire gen_wlock exclusive":
        "use rw.write: `async with rw.write:`",
    "upgradable upgradeable_read upgradable_read update_lock": "use rw.upgradeable: `async with rw.upgradeable:`",
    "upgrade downgrade": "leases of rw.upgradeable have it: async with lease.upgrade(): ...",
    "acquire hold try_acquire release locked statistics":
        "rw.read, rw.write and rw.upgradeable have it: lease = await rw.read.acquire()",
    "holders waiters revoke": "rw.read, rw.write and rw.upgradeable have it",
})  # fmt: skip

_HIERARCHY = _names({
    "read_lock reader reader_lock acquire_read shared": "use lock.read: `async with lock.read:`",
    "write_lock writer writer_lock acquire_write exclusive": "use lock.write: `async with lock.write:`",
    "acquire hold try_acquire release locked statistics holders waiters revoke": "lock.read and lock.write have it",
    "path": "use lock.name",
})  # fmt: skip

_LEASE = _names({
    "extend reacquire refresh prolong keep_alive touch":
        "it is renewed until it is released; by hand, await lease.renew(60)",
    "owned is_owned is_held valid is_valid active acquired locked is_locked": "use lease.held",
    "is_lost expired is_expired": "use lease.lost",
    "expires_at expires_in expiry ttl get_ttl pttl remaining_ttl time_left validity validity_time deadline":
        "use lease.remaining(), the seconds that are left of it",
    "unlock do_release close aclose cancel": "use await lease.release()",
    "resource lock_name": "use lease.name",
    "key value id lock_id identifier local": "use lease.name for what is held, lease.token for what proves it",
    "fence fencing epoch version": "use lease.fencing_token",
    "owner owner_id locked_by holder": "it is held by this process; await lock.holders() says who holds a name",
    "raise_if_lost assert_held ensure_held verify": "use lease.check()",
    "on_lost lost_event add_done_callback wait": "use await lease.wait_lost()",
    "transfer handoff detach serialize": "use text = await lease.hand_off(), and elsewhere await lock.adopt(text)",
    "acquire try_acquire hold": "its lock has it; a lease is what was acquired",
    "statistics holders waiters revoke info": "its lock has it: await lock.statistics(), await lock.holders()",
    "limit permits": "use await semaphore.statistics()",
})  # fmt: skip

_ONE_NAME = "use locks.lock(name): `async with locks.lock(name):`"

_MANAGER = _names({
    "rw_lock read_write_lock reader_writer_lock get_rw_lock get_read_write_lock read_lock write_lock":
        "use locks.rwlock(name)",
    "r_lock re_lock reentrant_lock get_reentrant_lock": "use locks.rlock(name)",
    "get_lock create_lock make_lock new_lock mutex fair_lock get_fair_lock acquire acquire_lock hold": _ONE_NAME,
    "locked is_locked": "use await locks.lock(name).locked()",
    "unlock release release_lock extend": "leases have it: await lease.release(), await lease.renew(60)",
    "sem get_semaphore bounded_semaphore capacity_limiter get_permit_expirable_semaphore":
        "use locks.semaphore(name, limit)",
    "multi_lock get_multi_lock": "use locks.multilock([name, another])",
    "redlock red_lock get_red_lock": "it has several clients: Redlock([redis_a, redis_b, redis_c], name)",
    "hierarchical_lock hierarchy tree": "use locks.hierarchical(path)",
    "optimistic optimistic_lock versioned_value watch": "use locks.versioned(key)",
    "with_lock decorator synchronize": "use aiolocks.with_lock(locks, name)",
    "close disconnect destroy stop shutdown": "use await locks.aclose()",
    "redis connection pool": "use locks.client",
    "holders waiters revoke statistics": "its locks have it: await locks.lock(name).statistics()",
})  # fmt: skip

_VERSIONED = _names({
    "get load fetch": "use value, version = await versioned.read()",
    "set put save compare_and_set cas": "use await versioned.write(value, version)",
    "modify transaction transact watch": "use await versioned.update(function)",
    "name": "use versioned.key",
    "acquire hold lock release": "nothing is locked: use await versioned.update(function), or a Lock",
})  # fmt: skip

_TABLES = {
    "Semaphore": _SEMAPHORE, "RWLock": _RWLOCK, "HierarchicalLock": _HIERARCHY, "Lease": _LEASE,
    "LockManager": _MANAGER, "Versioned": _VERSIONED,
}  # fmt: skip
"""By class; any other can be acquired."""

_BUSY = "use AcquireTimeoutError; try_acquire() returns None"

_PACKAGE = _names({
    "ReadWriteLock ReaderWriterLock AsyncRWLock ReentrantReadWriteLock": "use RWLock",
    "ReentrantLock RecursiveLock": "use RLock",
    "RedisLock AsyncLock": "use Lock; in place of redis-py's own, aiolocks.compat.RedisLock",
    "Mutex FairLock FencedLock DistributedLock SpinLock": "use Lock",
    "BoundedSemaphore CapacityLimiter RedisSemaphore DistributedSemaphore PermitExpirableSemaphore": "use Semaphore",
    "Aioredlock RedlockFactory AIORedlock": "use Redlock([redis_a, redis_b, redis_c], name)",
    "Manager LockFactory LockProvider Locks Redisson Client": "use LockManager",
    "OptimisticLock": "use Versioned",
    "LockLost LeaseLost LockLostError LostLock LockExpired LockExpiredError LeaseExpired LockNotOwnedError NotOwned "
    "ExtendUnlockedLock ReleaseUnlockedLock NotAcquired": "use LeaseLostError",
    "AcquireTimeout LockTimeout LockTimeoutError LockAcquireError LockAcquisitionError AcquireError AlreadyLocked "
    "AlreadyAcquired LockBusy LockNotAvailable CannotObtainLock WouldBlock TimeoutExpired": _BUSY,
    "QuorumNotAchieved QuorumImpossible QuorumIsImpossible MultipleRedlockException": "use QuorumError",
    "VersionConflict WatchError Conflict": "use VersionConflictError",
    "locked synchronize synchronized lock_decorator SchedulerLock": "use with_lock",
    "RedlockError LockException": "use LockError",
    "fastapi": "import aiolocks.fastapi", "aiohttp": "import aiolocks.aiohttp", "testing": "import aiolocks.testing",
    "compat": "import aiolocks.compat", "events": "import aiolocks.events", "otel": "import aiolocks.otel",
})  # fmt: skip


def missing_from_package(name: str) -> NoReturn:
    """Raise the AttributeError of a *name* that the package lacks; for ``from aiolocks import …``, an ImportError."""
    package, hint = sys.modules["aiolocks"], None if name.startswith("_") else _PACKAGE.get(_plain(name))
    if hint is None:
        raise AttributeError(f"module 'aiolocks' has no attribute {name!r}", name=name, obj=package)
    asking = sys._getframe(1)
    if asking.f_code.co_code[asking.f_lasti] == _IMPORT_FROM:  # which swallows an AttributeError with its text
        raise ImportError(
            f"cannot import name {name!r} from 'aiolocks': {hint}", name="aiolocks", path=package.__file__
        )
    raise AttributeError(f"module 'aiolocks' has no attribute {name!r}: {hint}", name=name, obj=package)


class Elsewhere:
    """The base of what users hold."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> Any:
            """Raise the AttributeError of a name that is missing.

            Nothing of the object is asked for here: it may be half made, or a copy.
            """
            if not name.startswith("_") and not hasattr(type(self), name):
                hint = _TABLES.get(type(self).__name__, _ACQUIRABLE).get(_plain(name))
                if hint is not None:
                    raise AttributeError(
                        f"{type(self).__name__!r} object has no attribute {name!r}: {hint}", name=name, obj=self
                    )
            return object.__getattribute__(self, name)  # raises Python's own, or again what a property has raised
