"""Reads the user's client: its connection pool, and the server that it connects to."""

import logging
import weakref
from collections.abc import Hashable
from typing import TypeGuard, final

import redis as redis_sync
from redis._parsers import Encoder as RedisEncoder
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import NodesManager, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool

from .._core.guard_commands import Encoder
from .._core.untyped import RawConnection, untyped
from .connection import NEVER, Endpoint, connected

log = logging.getLogger("aiolocks")

Client = Redis | RedisCluster
"""The clients that users make and configure."""

Pool = ConnectionPool | NodesManager
"""The connections of a client. A client of a Cluster has a pool for each node, and a `NodesManager` of these."""


@final
class Server(Endpoint):
    """One server, at the address that the pool knows."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._default_retry: Retry | None = None

    async def connect(self) -> RawConnection:
        connection = untyped(self._pool).make_connection()
        return await connected(connection, connection.connect)

    def retry(self) -> Retry:
        policy: Retry | None = self._pool.connection_kwargs.get("retry") or self._default_retry
        if policy is not None:
            return policy
        try:  # this takes milliseconds
            made: Retry = untyped(self._pool).make_connection().retry
        except OSError:  # it reads files, and there may be no file descriptor left
            return NEVER
        self._default_retry = made
        return made


def behind_sentinels(pool: Pool) -> TypeGuard[SentinelConnectionPool]:
    return isinstance(pool, SentinelConnectionPool)


def sentinels_of(pool: SentinelConnectionPool) -> list[Redis]:
    return list(untyped(pool).sentinel_manager.sentinels)


def service_of(pool: SentinelConnectionPool) -> str:
    return str(untyped(pool).service_name)


def in_memory(pool: Pool) -> bool:
    """Whether the server behind *pool* is ``memory://``."""
    return not isinstance(pool, NodesManager) and pool.connection_class.__module__.startswith("fakeredis")


def server_of(pool: Pool) -> Hashable:
    """Return a value that identifies the server behind *pool*, equal for every pool of that server."""
    options = pool.connection_kwargs
    server = options.get("server")  # in memory, where each client has a host of its own
    return place_of(pool) if server is None else id(server), int(options.get("db") or 0)


def place_of(pool: Pool) -> str:
    """Return the address of the server behind *pool*, without credentials."""
    if isinstance(pool, NodesManager):
        return ",".join(sorted(pool.startup_nodes))
    options = pool.connection_kwargs
    if behind_sentinels(pool):
        sentinels = ",".join(sorted({place_of(sentinel.connection_pool) for sentinel in sentinels_of(pool)}))
        return f"{sentinels}/{service_of(pool)}"
    place = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    db = int(options.get("db") or 0)
    return f"{place}/{db}" if db else str(place)


_MAX_LOGGED = 1000

_logged: "weakref.WeakKeyDictionary[object, dict[Hashable, None]]" = weakref.WeakKeyDictionary()


def warn_once(pool: Pool, what: Hashable, message: str, *args: object, level: int = logging.WARNING) -> None:
    """Log *message*, once per *pool* and *what*: sessions are short-lived, and one line is enough."""
    lives_as_long = pool.read_load_balancer if isinstance(pool, NodesManager) else pool  # it allows weak references
    logged = _logged.setdefault(lives_as_long, {})
    if what not in logged:
        if len(logged) >= _MAX_LOGGED:
            del logged[next(iter(logged))]
        logged[what] = None
        log.log(level, message, *args)


def warn_of_missing_right(pool: Pool, right: str, therefore: str) -> None:
    """Log, once per *pool*, that its Redis user lacks a *right*, and what follows from that."""
    warn_once(pool, right, "this Redis user lacks the right %s: %s", right, therefore)


def encoder_of(pool: Pool) -> Encoder:
    encoder: Encoder
    if isinstance(pool, NodesManager):
        terms = (pool.connection_kwargs[term] for term in ("encoding", "encoding_errors", "decode_responses"))
        encoder = untyped(RedisEncoder)(*terms)
    else:
        encoder = untyped(pool).get_encoder()
    return encoder


def pool_of(client: Client) -> Pool:
    """Return the connection pool of *client*, or the `NodesManager` of a client of a Cluster.

    Raises:
        TypeError: Not such a client. The error says what to pass instead.
    """
    if type(client) is Redis and type(client.connection_pool) is ConnectionPool:  # as nearly always
        return client.connection_pool
    given: object = client
    if isinstance(given, RedisCluster):
        return given.nodes_manager
    if isinstance(given, redis_sync.Redis):
        raise TypeError(
            "aiolocks needs an asynchronous client, from redis.asyncio; for code without await, see aiolocks.sync"
        )
    if isinstance(given, type) and issubclass(given, (Redis, redis_sync.Redis)):
        raise TypeError("aiolocks needs a client, such as redis.asyncio.Redis(), not the class")
    if isinstance(given, str) and "://" in given:
        raise TypeError("aiolocks needs a redis.asyncio.Redis client, not a URL: see LockManager.from_url")
    if isinstance(given, str) or (isinstance(given, (list, tuple)) and str in map(type, given)):
        raise TypeError(f"the redis.asyncio.Redis client goes first, then the name: not a {type(given).__name__} first")
    if isinstance(given, (list, tuple)):
        raise TypeError(f"one client is needed, not a {type(given).__name__}: only a Redlock has several")
    if isinstance(getattr(given, "client", None), Redis):
        raise TypeError(
            f"aiolocks needs a redis.asyncio.Redis client, not a {type(given).__name__}, which makes locks itself: "
            'manager.lock("orders:42")'
        )
    if not isinstance(given, Redis) or isinstance(given, Pipeline):
        raise TypeError(f"aiolocks needs a redis.asyncio.Redis client, not {type(given).__name__}")
    pool = given.connection_pool
    if behind_sentinels(pool) and not untyped(pool).is_master:
        raise TypeError("aiolocks needs a client of the primary, which can write: sentinel.master_for, not slave_for")
    return pool
