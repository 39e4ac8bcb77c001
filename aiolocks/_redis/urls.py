"""Makes a client from a URL, whose options redis-py parses.

`memory://` is a server inside this process, for demos, tests and single-process programs: fakeredis, which the extra
'memory' of aiolocks installs, and which is imported when a client is made.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import parse_url
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import RedisClusterException

from .._core.untyped import untyped
from .clients import Client, behind_sentinels, pool_of, sentinels_of

SCHEME = "memory://"

_SCHEMES = "redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"

_memories: dict[str, Any] = {}
"""The named in-memory servers, for as long as the process lives."""

_FOR_SENTINELS = "sentinel_"
"""Prefix of the options for Sentinels only."""

_SHARED = ("ssl_", "socket_")
"""Prefixes of the options for both Sentinels and servers."""


def client_of(url: str, **terms: Any) -> Any:
    """Return a client for *url*, with *terms* as more options of redis-py.

    The scheme is checked here, as redis-py's error would not name ours.

    Raises:
        ValueError: A URL of another kind, or a URL that cannot be read.
        ImportError: ``memory://`` without its extra.
    """
    if url.startswith(SCHEME):
        return memory_client(url)
    scheme, behind, rest = url.partition("://")
    if not behind or scheme not in _SCHEMES:
        raise ValueError(f"url must begin with {', '.join(f'{known}://' for known in _SCHEMES)} or {SCHEME}")
    _, hosts, path, _ = _split(rest)
    make: Callable[[str, str, dict[str, Any]], Client]
    missing = ""
    if scheme.endswith("+sentinel"):
        make, looks = _behind_sentinels, f"{scheme}://HOST:PORT,HOST:PORT/SERVICE/DB"
        if not (hosts and path.partition("/")[0]):
            missing = "service" if hosts else "Sentinel"
    elif scheme.endswith("+cluster"):
        make, looks = _of_cluster, f"{scheme}://HOST:PORT,HOST:PORT"
    else:
        make, looks = _one_server, "redis://HOST:PORT/DB, rediss://... or unix:///PATH"
        if scheme == "unix" and not path:
            missing = "socket"
    if missing:
        raise ValueError(f"url names no {missing}: it looks like {looks}")
    try:
        return make(scheme, rest, terms)
    except (ValueError, TypeError, AttributeError, RedisClusterException):  # of an option that redis-py cannot use
        pass  # its text quotes the URL, which may hold the password, so it must not be the context of our error either
    raise ValueError(f"url cannot be read; it looks like {looks}, with special characters of a password written as %XX")


async def close_client(client: Client) -> None:
    """Close *client*, which `client_of` made, and the clients of its Sentinels."""
    await client.aclose()
    pool = pool_of(client)
    if behind_sentinels(pool):
        for sentinel in sentinels_of(pool):
            await sentinel.aclose()


def memory_client(url: str) -> Redis:
    """Return a client of the in-memory server that *url* names: ``memory://`` is private, ``memory://NAME`` shared.

    Raises:
        ImportError: The extra is not installed.
        ValueError: The URL holds more than a name.
    """
    try:
        from fakeredis import FakeAsyncRedis, FakeServer
    except ImportError as error:
        raise ImportError("memory:// needs the extra 'memory' of aiolocks") from error
    name = url.removeprefix(SCHEME).rstrip("/")
    if not set(name).isdisjoint("/?#@"):
        raise ValueError("memory:// takes a name and nothing else, such as memory://tests")
    server = FakeServer(version=(7,))  # equivalent: 8, any version from 7 on
    if name:
        server = _memories.setdefault(unquote(name), server)
    client: Redis = FakeAsyncRedis(server=server)
    return client


def _one_server(scheme: str, rest: str, terms: dict[str, Any]) -> Redis:
    client: Redis = untyped(Redis).from_url(f"{scheme}://{rest}", **terms)
    usual = Redis().get_retry()  # redis-py's client from a URL has no retries: one lost reply would be an error
    never = client.connection_pool.connection_kwargs.get("retry_on_timeout") is False
    if usual is not None and not never and "retry" not in terms:
        client.set_retry(usual)
    return client


def of_node(url: str, host: str, port: int) -> str:
    """Return the URL of one node of the Cluster at *url*, with the same credentials and options."""
    scheme, _, rest = url.partition("://")
    credentials, _, _, options = _split(rest)
    where = f"[{host}]" if ":" in host else host
    return f"{scheme.removesuffix('+cluster')}://{credentials}{where}:{port}{options and '?'}{options}"


def _split(rest: str) -> tuple[str, str, str, str]:
    """Return the credentials with their ``@``, the hosts (urllib knows one only), the path and the options."""
    place, _, options = rest.partition("#")[0].partition("?")
    netloc, _, path = place.partition("/")
    credentials, at, hosts = netloc.rpartition("@")
    return credentials + at, hosts, path.strip("/"), options


def _behind_sentinels(scheme: str, rest: str, more: dict[str, Any]) -> Redis:
    credentials, hosts, path, options = _split(rest)
    service, _, database = path.partition("/")
    ours = dict(parse_qsl(options))
    prefixed = [name for name in ours if name.startswith(_FOR_SENTINELS)]
    theirs = {name.removeprefix(_FOR_SENTINELS): ours.pop(name) for name in prefixed}
    shared = {name: text for name, text in ours.items() if name.startswith(_SHARED)}
    terms = _parsed(f"{credentials}localhost", database, ours) | more
    of_sentinels = _parsed("localhost", "", {**shared, **theirs}) | more
    if scheme == "rediss+sentinel":
        terms["ssl"] = of_sentinels["ssl"] = True
    addresses = [_address(host, 26379) for host in hosts.split(",")]
    manager = untyped(Sentinel)(addresses, sentinel_kwargs=of_sentinels)
    usual = Redis().get_retry()
    if usual is not None and terms.get("retry_on_timeout") is not False:
        terms.setdefault("retry", usual)
    client: Redis = manager.master_for(unquote(service), **terms)
    return client


def _of_cluster(scheme: str, rest: str, more: dict[str, Any]) -> RedisCluster:
    credentials, hosts, path, options = _split(rest)
    if path:
        raise ValueError("a Cluster has one database")
    terms = _parsed(f"{credentials}localhost", "", dict(parse_qsl(options))) | more
    if scheme == "rediss+cluster":
        terms["ssl"] = True
    nodes = [untyped(ClusterNode)(*_address(host, 6379)) for host in hosts.split(",")]
    client: RedisCluster = untyped(RedisCluster)(startup_nodes=nodes, **terms)
    return client


def _parsed(server: str, database: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return redis-py's options for a server, without its address."""
    terms = dict(parse_url(urlunsplit(("redis", server, f"/{database}", urlencode(options), ""))))
    return {name: term for name, term in terms.items() if name not in ("host", "port")}


def _address(host: str, usual_port: int) -> tuple[str, int]:
    parts = urlsplit(f"redis://{host}")
    if parts.hostname is None or "@" in host:
        raise ValueError("no host")
    return parts.hostname, parts.port or usual_port
