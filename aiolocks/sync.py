"""Locks for synchronous code and threads: the asynchronous ones, run in the event loop of `_threads`.

::

    from aiolocks.sync import LockManager

    locks = LockManager.from_url("redis://localhost", ttl=10)
    with locks.lock("orders:42", acquire_timeout=5) as lease:
        lease.check()  # before each write

Keys, queue and fencing tokens are the same. Most methods call their namesake of the asynchronous class, and have its
docstring in the words of threads. A loss cannot stop a thread: `lease.check()` raises it, and so does the end of the
block.
"""

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NoReturn,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    final,
)

import aiolocks

from ._core.hints import NameHints
from ._core.options import Duration, Replicas
from ._engine.lease import state_of
from ._engine.validity import GONE_FROM_SERVER
from ._loop_thread import managers
from ._primitives.base import Acquirable as AsyncAcquirable
from ._primitives.versioned import Writable
from ._threads import Call, Exits, claim_exit

__all__ = ["Hold", "Lease", "Lock", "LockManager", "MultiLock", "RLock", "RWLock", "Semaphore", "Versioned"]

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound="Lease | None")

_WORDS = (
    (", which also stops the body when the lease is lost", ", which always releases it"), ("async with", "with"),
    ("await ", ""), ("a cancellation", "an interruption, such as Ctrl-C,"), ("Cancelling", "Interrupting"),
    ("task", "thread"),
)  # fmt: skip
"""Words about coroutines, and what docstrings and hints say to threads instead."""

_ELSEWHERE = {"upgrade": "RWLock", "upgradeable": "RWLock", "redlock": "Redlock", "hierarchical": "HierarchicalLock"}
"""What only asynchronous classes have. So is `adopt`."""


class AsyncOnly(TypeError, AttributeError):
    """A TypeError for which `hasattr` is False."""


def _for_threads(text: str) -> str:
    return functools.reduce(lambda text, words: text.replace(*words), _WORDS, text)


class _Face:
    """The base of everything here: an asynchronous object, and the name of its class, for errors."""

    def __init__(self, inner: Any, of: str) -> None:
        self._inner, self._of = inner, of

    def __repr__(self) -> str:
        return f"<aiolocks.sync.{repr(self._inner).removeprefix('<')}"

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name):
            of = self._of if name == "adopt" else _ELSEWHERE.get(name)
            if of is not None:
                raise AsyncOnly(f"aiolocks.sync has no {name!r}: in a coroutine, use aiolocks.{of}")
            try:
                return NameHints.__getattr__(self, name)
            except AttributeError as error:
                raise AttributeError(_for_threads(str(error)), name=name, obj=self) from None


def _waits(
    method: Callable[Concatenate[Any, P], Awaitable[T]], *, certain: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """Return the method that calls *method* of the asynchronous object, and waits for the result."""

    def call(face: Any, /, *args: P.args, **keywords: P.kwargs) -> T:
        make: Callable[[], Awaitable[T]] = partial(getattr(face._inner, method.__name__), *args, **keywords)
        return Call(make, certain=certain).result(face._of)

    return _like(method, call)


def _acquires(
    method: Callable[Concatenate[Any, P], Awaitable[T]], lease_of: Callable[[T, str], L]
) -> Callable[Concatenate[Any, P], L]:
    """Return the method that acquires as *method* does. *lease_of* makes of its result one for threads."""

    def call(face: Any, /, *args: P.args, **keywords: P.kwargs) -> L:
        async def acquire() -> L:
            return lease_of(await getattr(face._inner, method.__name__)(*args, **keywords), face._of)

        return Call(acquire, _release).result(face._of)

    return _like(method, call)


def _holds(method: Callable[Concatenate[Any, P], object]) -> "Callable[Concatenate[Any, P], Hold]":
    """Return the method that returns a block as *method* of the asynchronous object does."""

    def call(face: Any, /, *args: P.args, **keywords: P.kwargs) -> Hold:
        return Hold(getattr(face._inner, method.__name__)(*args, **keywords), face._of)

    return _like(method, call)


def _like(method: Callable[..., object], call: Callable[P, T]) -> Callable[P, T]:
    functools.update_wrapper(call, method, ("__name__", "__qualname__"), ())
    call.__doc__ = _for_threads(method.__doc__ or "")
    return call


class _Block(_Face):
    """Something that `with` enters, once at a time. Its state is `_open`, the lease of the open block."""

    _open: aiolocks.Lease | None = None

    def __enter__(self) -> "Lease":
        """Enter the block. Raises what `acquire` raises, and RuntimeError if it is open already."""
        return Call(self._enter, self._leave).result(self._of)

    async def _enter(self) -> "Lease":
        self._open = lease = await self._inner.__aenter__()
        return self if isinstance(self, Lease) else Lease(lease, self._of)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lease. Wait for that up to 1 s, or until its end.

        Raises:
            LeaseLostError: It was lost, and the body raised no exception of its own.
        """
        Call(partial(self._leave, exc=exc), certain=True).result(self._of)

    async def _leave(self, _: object = None, exc: BaseException | None = None) -> None:
        lease, self._open = self._open, None
        # With on_lost="flag", the asynchronous block notes a loss on the exception that leaves it, and raises nothing.
        leaving = exc if isinstance(exc, Exception) else Exception()
        await self._inner.__aexit__(type(leaving), leaving, None)
        if exc is None and lease is not None and hasattr(leaving, "__notes__"):
            raise state_of(lease).error(None if lease.lost else GONE_FROM_SERVER)


@final
class Hold(_Block):
    """``with lock.hold(...)``: one acquisition and its block. It can be used again once the block is left."""


@final
class Lease(_Block):
    """The right to act until a deadline, renewed until it is released, also while its thread is busy.

    `with` blocks, `acquire()` and `try_acquire()` give it. Any thread may use or release it. ``with lease:`` releases
    it at the end. It is never copied or pickled. Once nothing refers to it, and its thread has ended, it is no longer
    renewed.
    """

    _inner: aiolocks.Lease

    @property
    def name(self) -> str:
        """The name that is held, as the caller gave it."""
        return self._inner.name

    @property
    def token(self) -> str:
        """The random token that proves who holds the name. Keep it out of logs."""
        return self._inner.token

    @property
    def fencing_token(self) -> int:
        """A number that grows with every grant of the name. Send it to the resource, which rejects smaller ones."""
        return self._inner.fencing_token

    @property
    def fencing_tokens(self) -> Mapping[str, int]:
        """The fencing token of each name. Only a `MultiLock` has several."""
        return self._inner.fencing_tokens

    @property
    def held(self) -> bool:
        """Whether the lease is certainly valid now, by the local clock. False once lost or released."""
        return self._inner.held

    @property
    def lost(self) -> bool:
        """Whether the lease ended before it was released, by the local clock."""
        return self._inner.lost

    def remaining(self) -> float:
        """Return the seconds of certain validity left, by the local clock. 0.0 once lost or released."""
        return self._inner.remaining()

    def check(self) -> None:
        """Raise LeaseLostError if the lease is lost or released. It asks only the clock: call it before every write."""
        self._inner.check()

    wait_lost = _waits(aiolocks.Lease.wait_lost)
    renew = _waits(aiolocks.Lease.renew)
    guard = _waits(aiolocks.Lease.guard)
    release = _waits(aiolocks.Lease.release, certain=True)
    hand_off = _waits(aiolocks.Lease.hand_off)
    downgrade = _waits(aiolocks.Lease.downgrade)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._inner.__reduce_ex__(protocol)


def _lease_or_none(lease: aiolocks.Lease | None, of: str) -> Lease | None:
    return None if lease is None else Lease(lease, of)


async def _release(lease: Lease | None) -> None:
    if lease is not None:
        await lease._inner.release()


class _Acquirable(_Face):
    """The base of the primitives. Any number of threads can share one."""

    @property
    def name(self) -> str:
        """The name, as given."""
        return self._inner.name  # type: ignore[no-any-return]

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

    release = _waits(AsyncAcquirable.release, certain=True)
    locked = _waits(AsyncAcquirable.locked)
    statistics = _waits(AsyncAcquirable.statistics)
    holders = _waits(AsyncAcquirable.holders)
    waiters = _waits(AsyncAcquirable.waiters)
    revoke = _waits(AsyncAcquirable.revoke)


class _Single(_Acquirable):
    """The base of the primitives without permits."""

    hold = _holds(AsyncAcquirable.hold)
    acquire = _acquires(AsyncAcquirable.acquire, Lease)
    try_acquire = _acquires(AsyncAcquirable.try_acquire, _lease_or_none)


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

    hold = _holds(aiolocks.Semaphore.hold)
    acquire = _acquires(aiolocks.Semaphore.acquire, Lease)
    try_acquire = _acquires(aiolocks.Semaphore.try_acquire, _lease_or_none)
    resize = _waits(aiolocks.Semaphore.resize)


@final
class RWLockMode(_Single):
    """One way to hold a read-write lock: its `read` or `write`."""


@final
class RWLock(_Face):
    """Many readers at once (``with rw.read:``) or one writer (``with rw.write:``); `aiolocks.RWLock` for threads."""

    def __init__(self, inner: aiolocks.RWLock, of: str) -> None:
        super().__init__(inner, of)
        self.read = RWLockMode(inner.read, of)
        """Beside other readers."""
        self.write = RWLockMode(inner.write, of)
        """Alone. `lease.downgrade()` goes on as a reader."""

    @property
    def name(self) -> str:
        """The name, as given."""
        return self.read.name


@final
class Versioned(_Face):
    """Optimistic locking: a value is written if it is unchanged since it was read; `aiolocks.Versioned` for threads."""

    read = _waits(aiolocks.Versioned.read)
    write = _waits(aiolocks.Versioned.write)

    @property
    def key(self) -> str:
        """The key of the value, as given."""
        return self._inner.key  # type: ignore[no-any-return]

    def update(self, fn: Callable[[Any], Writable], *, attempts: int = 20) -> tuple[Writable, str]:
        """Replace the value by ``fn(value)``. *fn* is a plain function and runs in this thread; see `aiolocks`."""
        call = Call[tuple[Writable, str]](lambda: self._inner.update(call.in_thread(fn), attempts=attempts))
        return call.result(self._of, apart=True)


class LeaseOptions(TypedDict, total=False):
    """The options of the primitives that have leases, for type checkers; see `aiolocks.Lock`."""

    ttl: Duration
    acquire_timeout: Duration | None
    on_lost: Literal["flag"]
    renew: bool
    max_hold: Duration | None
    replicas: Replicas
    wait_release: bool
    min_uptime: Duration
    min_hold: Duration
    prefix: str


def _checked(of: str, options: Mapping[str, object]) -> Any:
    """Return *options* for the asynchronous class *of*. Raise TypeError if one of them is for coroutines only."""
    wrong = [name for name in ("watchdog", "max_stall", "track") if name in options]
    wrong += ['on_lost="cancel"'] if options.get("on_lost") == "cancel" else []
    if wrong:
        raise TypeError(
            f"aiolocks.sync has no {wrong[0]}: a thread of its own renews leases, and a loss stops no thread, so call "
            f"lease.check() before each write. In a coroutine, use aiolocks.{of}"
        )
    return {"on_lost": "flag", **options}


@final
class LockManager(_Face):
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
        manager = aiolocks.LockManager.from_url(url, holder=holder, **_checked("LockManager", options))
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

    def versioned(self, key: str, *, expire: Duration | None = None, prefix: str | None = None) -> Versioned:
        """Return a `Versioned`; of the defaults, only `prefix` applies."""
        return Versioned(self._inner.versioned(key, expire=expire, prefix=prefix), "Versioned")

    def close(self) -> None:
        """Close this manager and its client. Waiting threads and later calls get RuntimeError. Leases stay."""
        Call(self._inner.aclose, certain=True).result(self._of)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
