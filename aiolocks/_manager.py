"""`LockManager`: defaults shared by many locks, and a client of its own when it made one."""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, cast, final

from redis.asyncio import Redis

from ._core.hints import NameHints, entered_without_async
from ._core.kinds import KIND_OF_CLASS, KINDS
from ._core.options import Duration, LeaseOptions, TrackedOptions
from ._election import Election, ElectionOptions
from ._engine.closing import Closing
from ._once import Once, OnceOptions
from ._primitives.base import Acquirable, made_by_manager
from ._primitives.hierarchy import HierarchicalLock
from ._primitives.lock import Lock
from ._primitives.multilock import MultiLock
from ._primitives.rlock import RLock
from ._primitives.rwlock import RWLock
from ._primitives.semaphore import Semaphore
from ._primitives.versioned import Versioned
from ._rate_limiter import RateLimiter, RateLimiterOptions
from ._redis.clients import Client, in_memory, place_of, pool_of
from ._redis.urls import client_of, close_client

T = TypeVar("T")

_WITHOUT = {kind.class_name: {*kind.without, *(("track",) if kind.untracked else ())} for kind in KINDS}
"""Options whose defaults do not apply, by class."""


@final
class LockManager(NameHints):
    """Makes primitives for one client, with shared defaults that each call may override.

    ::

        async with LockManager.from_url("redis://localhost", ttl=10) as locks:
            async with locks.lock("orders:42"):
                ...

    A manager of your own client, `LockManager(redis, prefix="myapp:")`, closes nothing.

    Args:
        client: A `redis.asyncio.Redis`.
        holder: A label for this manager's holders and waiters in `holders()` and `waiters()`, such as the name of a
            service.
        options: Defaults; see `Lock`.

    Raises:
        TypeError, ValueError: See `Lock`. They are raised at once.
    """

    def __init__(self, client: Client, *, holder: str | None = None, **options: Unpack[TrackedOptions]) -> None:
        pool_of(client)  # equivalent: line dropped, the lock checks it too
        self._holder = check_holder(holder)
        self._client = client
        self._owns_client = False
        self._defaults = options
        self._closing = Closing()
        self.lock("checks the defaults")

    @classmethod
    def from_url(cls, url: str, *, holder: str | None = None, **options: Unpack[TrackedOptions]) -> Self:
        """Return a manager with a client of its own, which `aclose()` or `async with` closes.

        That client retries after a lost reply, like `redis.asyncio.Redis()` and unlike redis-py's own `from_url`. With
        ``?retry_on_timeout=no`` it never retries.

        Args:
            url: ``redis://``, ``rediss://`` or ``unix://`` as redis-py understands them;
                ``redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB`` for the primary that Sentinels name, or
                ``rediss+sentinel://`` with TLS, where ``?sentinel_username=`` and ``?sentinel_password=`` are for the
                Sentinels; ``redis+cluster://HOST:PORT,HOST:PORT`` for the Cluster of these nodes, or
                ``rediss+cluster://``; ``memory://`` for a private server in this process and ``memory://NAME`` for one
                shared in this process. Both need the extra 'memory' of aiolocks.
            holder, options: See the class.

        Raises:
            ValueError: An unknown kind of URL.
            ImportError: ``memory://`` without its extra.
        """
        if not isinstance(url, str):
            raise TypeError(f"url must be a str, not {type(url).__name__}")
        manager = cls(client_of(url), holder=holder, **options)
        manager._owns_client = True
        return manager

    @property
    def client(self) -> Redis:
        """The client of all its primitives. For a Cluster it is a `RedisCluster`, which has the same commands."""
        return cast("Redis", self._client)

    def election(self, name: str, **options: Unpack[ElectionOptions]) -> Election:
        """Return an `Election`; *options* override the defaults."""
        return self._make(Election, options, name)

    def hierarchical(self, path: str, **options: Unpack[LeaseOptions]) -> HierarchicalLock:
        """Return a `HierarchicalLock`; *options* override the defaults."""
        return self._make(HierarchicalLock, options, path)

    def lock(self, name: str, **options: Unpack[TrackedOptions]) -> Lock:
        """Return a `Lock`; *options* override the defaults."""
        return self._make(Lock, options, name)

    def multilock(self, names: Iterable[str], **options: Unpack[TrackedOptions]) -> MultiLock:
        """Return a `MultiLock`; *options* override the defaults."""
        return self._make(MultiLock, options, names)

    def once(self, name: str, *, keep: Duration, **options: Unpack[OnceOptions]) -> Once:
        """Return a `Once`; *options* override the defaults."""
        return self._make(Once, {"keep": keep, **options}, name)

    def rate_limiter(
        self, name: str, limit: int, *, per: Duration, **options: Unpack[RateLimiterOptions]
    ) -> RateLimiter:
        """Return a `RateLimiter`; of the defaults, `acquire_timeout`, `max_waiting` and `prefix` apply."""
        return self._make(RateLimiter, {"per": per, **options}, name, limit)

    def rlock(self, name: str, **options: Unpack[TrackedOptions]) -> RLock:
        """Return an `RLock`; *options* override the defaults."""
        return self._make(RLock, options, name)

    def rwlock(self, name: str, **options: Unpack[TrackedOptions]) -> RWLock:
        """Return an `RWLock`; *options* override the defaults."""
        return self._make(RWLock, options, name)

    def semaphore(self, name: str, limit: int | None, **options: Unpack[LeaseOptions]) -> Semaphore:
        """Return a `Semaphore`; *options* override the defaults."""
        return self._make(Semaphore, options, name, limit)

    def versioned(self, key: str, *, expire: Duration | None = None, prefix: str | None = None) -> Versioned:
        """Return a `Versioned`; of the defaults, only `prefix` applies."""
        prefix = self._defaults.get("prefix", "aiolocks:") if prefix is None else prefix
        made = Versioned(self._client, key, expire=expire, prefix=prefix)
        made._closing = self._closing
        return made

    def _make(self, kind: Callable[..., T], options: Mapping[str, object], *given: object) -> T:
        """Call *kind* with the client, *given*, and *options*, which override the defaults."""
        defaults: Mapping[str, object] = self._defaults
        without = _WITHOUT.get(getattr(kind, "__name__", ""), set[str]())
        if not without.isdisjoint(defaults):
            defaults = {name: value for name, value in defaults.items() if name not in without}
        made = kind(self._client, *given, **{**defaults, **options})
        if isinstance(made, Acquirable):
            made_by_manager(made, self._closing, self._holder)
        elif type(made).__name__ in KIND_OF_CLASS:
            of_class = KIND_OF_CLASS[type(made).__name__]
            for part in ("_primitive",) if of_class.loop else of_class.modes:
                made_by_manager(getattr(made, part), self._closing, self._holder)
        return made

    async def aclose(self) -> None:
        """Close this manager, and its client if `from_url` made that.

        Its waiters get RuntimeError, and so do later calls of its primitives. Leases stay, and are renewed, until they
        are released or expire. Closing it again does no harm.
        """
        self._closing.close()
        if self._owns_client:
            await close_client(self._client)

    if not TYPE_CHECKING:  # type checkers know without it
        __enter__ = __exit__ = entered_without_async

    async def __aenter__(self) -> Self:
        if self._closing.closed:
            raise RuntimeError(f"{self!r}: it cannot be used again; make another")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        pool = pool_of(self._client)
        place = "memory://" if in_memory(pool) else place_of(pool)
        terms = {**({} if self._holder is None else {"holder": self._holder}), **self._defaults}
        shown = "".join(f" {name}={value!r}" for name, value in terms.items())
        return f"<LockManager {place}{shown}{' closed' if self._closing.closed else ''}>"


def check_holder(holder: str | None) -> str | None:
    """Return the label of a manager's holders, or raise TypeError or ValueError."""
    given: object = holder
    if given is not None and not isinstance(given, str):
        raise TypeError(f"holder must be a str or None, not {type(given).__name__}")
    if holder is not None and not holder.strip():
        raise ValueError("holder must not be empty")
    return holder


def check_manager(found: object, place: str) -> None:
    """Raise TypeError unless *found* is a manager; *place* says where the web application looked for it."""
    if not isinstance(found, LockManager):
        raise TypeError(
            f"locked() needs a LockManager in {place}, or from its locks=, such as LockManager(redis), "
            f"not {type(found).__name__}"
        )
