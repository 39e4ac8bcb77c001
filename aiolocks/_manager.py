"""`LockManager`: defaults shared by many locks, and a client of its own when it made one."""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast, final

from redis.asyncio import Redis

from ._core.elsewhere import Elsewhere
from ._core.options import Duration, LeaseOptions, TrackedOptions
from ._core.teaching import entered_without_async
from ._engine.closing import Closing
from ._primitives.base import Acquirable, made_by_manager
from ._primitives.hierarchy import HierarchicalLock
from ._primitives.lock import Lock
from ._primitives.multilock import MultiLock
from ._primitives.rlock import RLock
from ._primitives.rwlock import RWLock
from ._primitives.semaphore import Semaphore
from ._primitives.versioned import Versioned
from ._redis.clients import Client, in_memory, place_of, pool_of
from ._redis.urls import client_of, close_client

T = TypeVar("T")

_UNTRACKED = (HierarchicalLock, Semaphore)
"""What the default for `track` does not apply to."""


_WAYS = ("read", "write", "upgradeable")
"""To hold what cannot be held itself."""


@final
class LockManager(Elsewhere):
    """Makes primitives around one client, with shared defaults that each call may override.

    ::

        async with LockManager.from_url("redis://localhost", ttl=10) as locks:
            async with locks.lock("orders:42"):
                ...

    Around your own client, `LockManager(redis, prefix="myapp:")`, it closes nothing.

    Args:
        client: A `redis.asyncio.Redis`.
        holder: What `holders()` and `waiters()` call those who use this manager, such as the name of a service.
        options: Defaults; see `Lock`.

    Raises:
        TypeError, ValueError: As `Lock` does, at once.
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

        That client retries after a lost answer, as `redis.asyncio.Redis()` does and redis-py's own `from_url` does not;
        with ``?retry_on_timeout=no`` it never retries.

        Args:
            url: ``redis://``, ``rediss://`` or ``unix://`` as redis-py understands them;
                ``redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB`` for the primary that Sentinels name, or
                ``rediss+sentinel://`` with TLS, where ``?sentinel_username=`` and ``?sentinel_password=`` are for the
                Sentinels; ``redis+cluster://HOST:PORT,HOST:PORT`` for the Cluster of these nodes, or
                ``rediss+cluster://``; ``memory://`` for a private server in this process and ``memory://NAME`` for one
                shared in this process, which both need the extra 'memory' of aiolocks.
            holder, options: As of the class.

        Raises:
            ValueError: A URL of another kind.
            ImportError: ``memory://`` without its extra.
        """
        if not isinstance(url, str):
            raise TypeError(f"url must be a str, not {type(url).__name__}")
        manager = cls(client_of(url), holder=holder, **options)
        manager._owns_client = True
        return manager

    @property
    def client(self) -> Redis:
        """The client that all its primitives use; of a Cluster, it is a `RedisCluster`, which has the same commands."""
        return cast("Redis", self._client)

    def hierarchical(self, path: str, **options: Unpack[LeaseOptions]) -> HierarchicalLock:
        """Return a `HierarchicalLock`; *options* override the defaults."""
        return self._called(HierarchicalLock(self._client, path, **self._with(options, HierarchicalLock)))

    def lock(self, name: str, **options: Unpack[TrackedOptions]) -> Lock:
        """Return a `Lock`; *options* override the defaults."""
        return self._called(Lock(self._client, name, **self._with(options)))

    def multilock(self, names: Iterable[str], **options: Unpack[TrackedOptions]) -> MultiLock:
        """Return a `MultiLock`; *options* override the defaults."""
        return self._called(MultiLock(self._client, names, **self._with(options)))

    def rlock(self, name: str, **options: Unpack[TrackedOptions]) -> RLock:
        """Return an `RLock`; *options* override the defaults."""
        return self._called(RLock(self._client, name, **self._with(options)))

    def rwlock(self, name: str, **options: Unpack[TrackedOptions]) -> RWLock:
        """Return an `RWLock`; *options* override the defaults."""
        return self._called(RWLock(self._client, name, **self._with(options)))

    def semaphore(self, name: str, limit: int | None, **options: Unpack[LeaseOptions]) -> Semaphore:
        """Return a `Semaphore`; *options* override the defaults."""
        return self._called(Semaphore(self._client, name, limit, **self._with(options, Semaphore)))

    def versioned(self, key: str, *, expire: Duration | None = None, prefix: str | None = None) -> Versioned:
        """Return a `Versioned`; of the defaults, only `prefix` applies."""
        prefix = self._defaults.get("prefix", "aiolocks:") if prefix is None else prefix
        made = Versioned(self._client, key, expire=expire, prefix=prefix)
        made._closing = self._closing
        return made

    def _make(self, kind: Callable[..., T], name: object, options: Mapping[str, object]) -> T:
        """Return what *kind* makes of the client, *name* and *options*, which override the defaults."""
        return self._called(kind(self._client, name, **self._with(options, kind)))

    async def aclose(self) -> None:
        """Close this manager, and its client if `from_url` made that.

        Waits begun through it end with RuntimeError, and later calls through it raise RuntimeError. Leases stay until
        their owners release them, or until they expire; they are renewed as before. Closing it again does no harm.
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

    def _called(self, made: T) -> T:
        """Return *made*, whose leases are this manager's."""
        if isinstance(made, Acquirable):
            made_by_manager(made, self._closing, self._holder)
        else:
            for way in (getattr(made, way, None) for way in _WAYS):
                if isinstance(way, Acquirable):
                    made_by_manager(way, self._closing, self._holder)
        return made

    def _with(self, options: Mapping[str, object], kind: object = None) -> Any:
        defaults: Mapping[str, object] = self._defaults
        if kind in _UNTRACKED:
            defaults = {name: value for name, value in defaults.items() if name != "track"}
        return {**defaults, **options}


def check_holder(holder: str | None) -> str | None:
    """Return what a manager calls its holders, or raise TypeError or ValueError."""
    given: object = holder
    if given is not None and not isinstance(given, str):
        raise TypeError(f"holder must be a str or None, not {type(given).__name__}")
    if holder is not None and not holder.strip():
        raise ValueError("holder must not be empty")
    return holder


def check_manager(found: object, place: str) -> None:
    """Raise TypeError unless *found*, which a web application keeps at *place* or makes for a request, is a manager."""
    if not isinstance(found, LockManager):
        raise TypeError(
            f"locked() needs a LockManager in {place}, or from its locks=, such as LockManager(redis), "
            f"not {type(found).__name__}"
        )
