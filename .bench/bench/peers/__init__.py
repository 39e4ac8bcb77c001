"""The libraries that are compared, each used as its documentation says, behind one narrow protocol.

A module here is imported only in processes that measure its library, which may not be installed elsewhere.
"""

import importlib
import importlib.util
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast

POOL = 64
"""Number of connections in the pool of peers with more tasks than connections; it is coredis's default."""

SAFETY = 30.0
"""TTL of every library's lease: the default of aiolocks."""


@dataclass(frozen=True, slots=True)
class Turn:
    """How one task acquires and releases: by the library's own methods where possible, so that nothing is added."""

    acquire: Callable[[], Awaitable[Any]]
    release: Callable[[Any], Awaitable[Any]]
    """Gets what `acquire` returned."""
    fence: Callable[[Any], int] | None = None
    """The fencing token of what `acquire` returned, where there is one: it tells the order of grants."""
    release_sha: bytes | None = None
    """The script that releases, where one hands the lock to the next waiter."""
    block: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    """The same as an `async with`, where that is measured too."""
    new_block: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    """The same with a lock that is made for this block."""


class Client(Protocol):
    """A library connected to one server. Each task asks for a turn of its own."""

    def lock(self, name: str, ttl: float = SAFETY, **options: Any) -> Turn:
        """Return a mutex with a lease of *ttl* seconds. The options are those of aiolocks; other libraries get none."""

    def semaphore(self, name: str, limit: int) -> Turn:
        """Return a semaphore. Only where the peer's entry says that it has one."""


class ReadWriteClient(Client, Protocol):
    """A client of a library whose entry says that it has read-write locks."""

    def shared(self, name: str, mode: str) -> Turn:
        """Return one side of a read-write lock: `read`, `upgradeable` or `write`."""


class MakingClient(Client, Protocol):
    """A client of aiolocks or redis-py, which also makes the library's own objects, with nothing added."""

    def maker(self, way: str) -> Callable[[str], AbstractAsyncContextManager[Any]]:
        """Return a function that makes a lock of a name: the `constructor`, or for aiolocks also a `manager`'s."""


class Module(Protocol):
    """What each adapter module here has."""

    def connect(self, url: str, connections: int | None) -> AbstractAsyncContextManager[Client]:
        """Return a client with a pool of so many connections; None: the library's default."""


class QuorumModule(Module, Protocol):
    """What the adapter has if the library's entry names ways to ask several servers."""

    def connect_quorum(self, urls: Sequence[str], way: str) -> AbstractAsyncContextManager[Callable[[str], Turn]]:
        """Return a function that makes a lock of a name, on clients of these servers with redis-py's default pool."""


@dataclass(frozen=True, slots=True)
class Peer:
    """What the bench must know of a library without importing it."""

    name: str
    distribution: str
    """On PyPI."""
    package: str
    module: str
    """The module of its adapter."""
    semaphore: bool = False
    queues: bool = False
    """Whether its waiters stand in line on the server."""
    renews: bool = False
    """Whether it renews a lease while it is held."""
    blocks_connections: bool = False
    """Each waiter keeps a connection while it waits, so that its documentation asks for a pool of that size."""
    pools: bool = True
    """Whether it has a pool whose size can be chosen."""
    reads: bool = False
    """Whether it has a read-write lock, so that its clients are `ReadWriteClient`."""
    quorums: tuple[str, ...] = ()
    """Its ways to hold a name on most of several servers, as the table calls them."""

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.package) is not None

    def connect(self, url: str, connections: int | None = None) -> AbstractAsyncContextManager[Client]:
        """Return a client; see `Module.connect`."""
        return cast("Module", importlib.import_module(f"bench.peers.{self.module}")).connect(url, connections)

    def connect_quorum(self, urls: Sequence[str], way: str) -> AbstractAsyncContextManager[Callable[[str], Turn]]:
        """Return a function that makes locks on several servers; see `QuorumModule.connect_quorum`."""
        module = cast("QuorumModule", importlib.import_module(f"bench.peers.{self.module}"))
        return module.connect_quorum(urls, way)

    def pool_for(self, waiters: int) -> int | None:
        """Return the pool that the documentation suggests for so many waiters in one process."""
        if not self.pools:
            return None
        return max(waiters + 16, POOL) if self.blocks_connections else POOL


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "aiolocks", "aiolocks", "aiolocks", "own",
            semaphore=True, queues=True, renews=True, pools=False, reads=True, quorums=("Redlock",),
        ),
        Peer("redis-py", "redis", "redis", "redis_py"),
        Peer(
            "redis-fifo-lock", "redis-fifo-lock", "redis_fifo_lock", "fifo_lock",
            queues=True, renews=True, blocks_connections=True,
        ),
        Peer(
            "py-redis-semaphore", "py-redis-semaphore", "redis_semaphore", "redis_semaphore",
            semaphore=True, renews=True, blocks_connections=True,
        ),
        Peer(
            "pottery", "pottery", "pottery", "pottery_redlock",
            quorums=("AIORedlock", "AIORedlock, socket_timeout=0.1", "Redlock in threads"),
        ),
        Peer("coredis", "coredis", "coredis", "coredis_lock"),
        Peer(
            "async-redis-rate-limiters", "async-redis-rate-limiters", "async_redis_rate_limiters", "rate_limiters",
            semaphore=True,
        ),
        Peer("floor", "hiredis", "hiredis", "floor", pools=False),
    )
}  # fmt: skip
