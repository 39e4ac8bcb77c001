"""Locks for synchronous code and threads: the asynchronous ones, run in the event loop of a background thread.

::

    from aiolocks.sync import LockManager

    locks = LockManager.from_url("redis://localhost", ttl=10)
    with locks.lock("orders:42", acquire_timeout=5) as lease:
        lease.check()  # before each write

Keys, queue and fencing tokens are the same. Most methods call their namesake of the asynchronous class, and have its
docstring in the words of threads. A loss cannot stop a thread: `lease.check()` raises it, and so does the end of the
block.
"""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, final

import aiolocks

from ._core.options import Duration, Replicas
from ._faces import Exits, Face, Hold, Lease, Named, acquires, claim_exit, holds, lease_or_none, waits
from ._loop_thread import managers
from ._once_outcome import Dumps, Loads
from ._primitives.base import Acquirable as AsyncAcquirable
from ._primitives.versioned import Writable
from ._rate_limiter import RateLimiterOptions
from ._thread_loops import Election, Once
from ._threads import Call

__all__ = [
    "Election", "Hold", "Lease", "Lock", "LockManager", "MultiLock", "Once", "RLock", "RWLock", "RateLimiter",
    "Semaphore", "Versioned",
]  # fmt: skip


class _Acquirable(Named):
    """The base of the primitives. Any number of threads can share one."""

    def __enter__(self) -> Lease:
        """Wait `acquire_timeout` for a lease, which the block holds; see `hold`."""
        hold = Hold(self._inner.hold(), self._of)
        claim_exit(self, hold)
        return hold.__enter__()

    if TYPE_CHECKING:

        def __exit__(
            self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
        ) -> None: ...

    else:
        __exit__ = Exits()

    release = waits(AsyncAcquirable.release, certain=True)
    locked = waits(AsyncAcquirable.locked)
    statistics = waits(AsyncAcquirable.statistics)
    holders = waits(AsyncAcquirable.holders)
    waiters = waits(AsyncAcquirable.waiters)
    revoke = waits(AsyncAcquirable.revoke)


class _Single(_Acquirable):
    """The base of the primitives without permits."""

    hold = holds(AsyncAcquirable.hold)
    acquire = acquires(AsyncAcquirable.acquire, Lease)
    try_acquire = acquires(AsyncAcquirable.try_acquire, lease_or_none)


@final
class Lock(_Single):
    """A mutex; `aiolocks.Lock` for threads."""


@final
class RLock(_Single):
    """A mutex that the thread which holds it can acquire again; `aiolocks.RLock` for threads."""


@final
class MultiLock(_Single):
    """Several names at once, all or none; `aiolocks.MultiLock` for threads."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names, each once, in the order in which they are acquired."""
        return self._inner.names  # type: ignore[no-any-return]


@final
class Semaphore(_Acquirable):
    """At most *limit* permits at once; `aiolocks.Semaphore` for threads."""

    hold = holds(aiolocks.Semaphore.hold)
    acquire = acquires(aiolocks.Semaphore.acquire, Lease)
    try_acquire = acquires(aiolocks.Semaphore.try_acquire, lease_or_none)
    resize = waits(aiolocks.Semaphore.resize)
    pause = waits(aiolocks.Semaphore.pause)
    resume = waits(aiolocks.Semaphore.resume)


@final
class RWLockMode(_Single):
    """One way to hold a read-write lock: its `read` or `write`."""


@final
class RWLock(Named):
    """Many readers at once (``with rw.read:``) or one writer (``with rw.write:``); `aiolocks.RWLock` for threads."""

    def __init__(self, inner: aiolocks.RWLock, of: str) -> None:
        super().__init__(inner, of)
        self.read = RWLockMode(inner.read, of)
        """Beside other readers."""
        self.write = RWLockMode(inner.write, of)
        """Alone. `lease.downgrade()` goes on as a reader."""


@final
class RateLimiter(Named):
    """At most *limit* starts in any window of *per* seconds (``with limiter:``); `aiolocks.RateLimiter` for threads."""

    acquire = waits(aiolocks.RateLimiter.acquire)
    try_acquire = waits(aiolocks.RateLimiter.try_acquire)
    statistics = waits(aiolocks.RateLimiter.statistics)
    pause = waits(aiolocks.RateLimiter.pause)
    resume = waits(aiolocks.RateLimiter.resume)

    def __enter__(self) -> None:
        """Wait `acquire_timeout` for a start; see `acquire`."""
        self.acquire()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing."""


@final
class Versioned(Face):
    """Optimistic locking: a value is written if it is unchanged since it was read; `aiolocks.Versioned` for threads."""

    read = waits(aiolocks.Versioned.read)
    write = waits(aiolocks.Versioned.write)

    @property
    def key(self) -> str:
        """The key of the value, as given."""
        return self._inner.key  # type: ignore[no-any-return]

    def update(self, fn: Callable[[Any], Writable], *, attempts: int = 20) -> tuple[Writable, str]:
        """Replace the value by ``fn(value)``. *fn* is a plain function and runs in this thread; see `aiolocks`."""
        call = Call[tuple[Writable, str]](lambda: self._inner.update(call.in_thread(fn), attempts=attempts))
        return call.result(self._of, apart=True)


class ElectionOptions(TypedDict, total=False):
    """The options of an `Election`, for type checkers; see `aiolocks.Election`."""

    ttl: Duration
    max_hold: Duration | None
    replicas: Replicas
    min_uptime: Duration
    note: str | None
    prefix: str


class OnceOptions(ElectionOptions, total=False):
    """The options of a `Once`, for type checkers; see `aiolocks.Once`."""

    errors: Literal["share", "retry"]
    dumps: Dumps
    loads: Loads
    acquire_timeout: Duration | None
    max_waiting: int | None


class LeaseOptions(ElectionOptions, total=False):
    """The options of the other primitives that have leases, for type checkers; see `aiolocks.Lock`."""

    acquire_timeout: Duration | None
    max_waiting: int | None
    on_lost: Literal["flag"]
    renew: bool
    wait_release: bool
    min_hold: Duration


def _checked(of: str, options: Mapping[str, object]) -> Any:
    """Return *options* for the asynchronous class *of*. Raise TypeError if one of them is for coroutines only."""
    wrong = [name for name in ("watchdog", "max_stall", "track") if name in options]
    wrong += ['on_lost="cancel"'] if options.get("on_lost") == "cancel" else []
    if wrong:
        raise TypeError(
            f"aiolocks.sync has no {wrong[0]}: a thread of its own renews leases, and a loss stops no thread, so call "
            f"lease.check() before each write. In a coroutine, use aiolocks.{of}"
        )
    return options


@final
class LockManager(Face):
    """Makes locks for synchronous code: Django, Flask, Celery, scripts, threads. Begin with `from_url`.

    ::

        locks = LockManager.from_url("redis://localhost", ttl=10)
        with locks.lock("orders:42", acquire_timeout=5) as lease:
            lease.check()  # before each write: LeaseLostError if it is lost

    Make it once, at import time. One event loop serves the process: it begins with the first call and ends at exit.
    After a fork the child begins another, and the leases stay with the parent. It needs no closing. `close`, or the end
    of a ``with`` block, closes its client and ends the waits of its threads.
    """

    def __init__(self, manager: aiolocks.LockManager) -> None:
        """For `from_url` alone."""
        if not isinstance(manager, aiolocks.LockManager):
            raise TypeError('aiolocks.sync makes its own client: use LockManager.from_url("redis://localhost")')
        super().__init__(manager, "LockManager")

    @classmethod
    def from_url(cls, url: str, *, holder: str | None = None, **options: Unpack[LeaseOptions]) -> Self:
        """Return a manager for the server at *url*. Nothing is connected yet.

        Args:
            url: As `aiolocks.LockManager.from_url` understands it.
            holder: A label for this manager's holders and waiters, such as the name of a service.
            options: Defaults, which each call can override: those of `LeaseOptions`; see `aiolocks.Lock`.

        Raises:
            ValueError: An unknown kind of URL, or a value out of range.
            TypeError: A wrong type, or an option for coroutines only.
            ImportError: ``memory://`` without its extra.
        """
        defaults: Any = {"on_lost": "flag", **_checked("LockManager", options)}
        manager = aiolocks.LockManager.from_url(url, holder=holder, **defaults)
        managers[manager] = url
        return cls(manager)

    def lock(self, name: str, **options: Unpack[LeaseOptions]) -> Lock:
        """Return a `Lock`; *options* override the defaults."""
        return Lock(self._inner.lock(name, **_checked("Lock", options)), "Lock")

    def rlock(self, name: str, **options: Unpack[LeaseOptions]) -> RLock:
        """Return an `RLock`; *options* override the defaults."""
        return RLock(self._inner.rlock(name, **_checked("RLock", options)), "RLock")

    def rwlock(self, name: str, **options: Unpack[LeaseOptions]) -> RWLock:
        """Return an `RWLock`; *options* override the defaults."""
        return RWLock(self._inner.rwlock(name, **_checked("RWLock", options)), "RWLock")

    def semaphore(self, name: str, limit: int | None, **options: Unpack[LeaseOptions]) -> Semaphore:
        """Return a `Semaphore`; *options* override the defaults."""
        return Semaphore(self._inner.semaphore(name, limit, **_checked("Semaphore", options)), "Semaphore")

    def multilock(self, names: Iterable[str], **options: Unpack[LeaseOptions]) -> MultiLock:
        """Return a `MultiLock`; *options* override the defaults."""
        return MultiLock(self._inner.multilock(names, **_checked("MultiLock", options)), "MultiLock")

    def rate_limiter(
        self, name: str, limit: int, *, per: Duration, **options: Unpack[RateLimiterOptions]
    ) -> RateLimiter:
        """Return a `RateLimiter`; of the defaults, `acquire_timeout`, `max_waiting` and `prefix` apply."""
        inner = self._inner.rate_limiter(name, limit, per=per, **_checked("RateLimiter", options))
        return RateLimiter(inner, "RateLimiter")

    def versioned(self, key: str, *, expire: Duration | None = None, prefix: str | None = None) -> Versioned:
        """Return a `Versioned`; of the defaults, only `prefix` applies."""
        return Versioned(self._inner.versioned(key, expire=expire, prefix=prefix), "Versioned")

    def once(self, name: str, *, keep: Duration, **options: Unpack[OnceOptions]) -> Once:
        """Return a `Once`; *options* override the defaults."""
        return Once(self._inner.once(name, keep=keep, **_checked("Once", options)), "Once")

    def election(self, name: str, **options: Unpack[ElectionOptions]) -> Election:
        """Return an `Election`; *options* override the defaults."""
        return Election(self._inner.election(name, **_checked("Election", options)), "Election")

    def close(self) -> None:
        """Close this manager and its client. Waiting threads and later calls get RuntimeError. Leases stay."""
        Call(self._inner.aclose, certain=True).result(self._of)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
