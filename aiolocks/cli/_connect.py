"""Connects a command to its server, or raises `Unusable` with the problem in one line."""

import asyncio
import errno
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import NodesManager
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core.answers import explained
from .._core.keys import Keys
from .._manager import LockManager
from .._redis import clients, urls
from .._redis.clients import behind_sentinels, sentinels_of
from .._redis.urls import SCHEME
from ._arguments import URL_VARIABLE, Unusable

PATIENCE = 5.0
"""Timeout in seconds for the first answer."""

_TLS_TIMEOUT = 2.0
"""Timeout in seconds to find out whether only one side uses TLS."""

OLDEST = (6, 2)

REFUSALS = (RedisError, RedisClusterException)
"""Errors of redis-py. RedisClusterException, for a Cluster that does not answer, is not a RedisError."""

_AWAY = (OSError, RedisConnectionError, RedisTimeoutError, RedisClusterException)
"""Errors of a server that does not answer, except those about the user or the password."""

_UNKNOWN_OPTIONS = "this --url has options after its question mark that redis-py does not know"

_OPTIONS_OF_TLS = "this --url has options for TLS, which need rediss:// (or rediss+sentinel://, rediss+cluster://)"

_NO_MEMORY = "memory:// needs the extra 'demo' of aiolocks; or give the --url of a Redis"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers and grants locks. `url` may contain credentials; `place` may be printed."""

    url: str
    place: str
    locks: LockManager
    in_process: bool


@asynccontextmanager
async def connect(url: str, run: str) -> AsyncGenerator[Server]:
    """Yield the server at *url*. A `memory://` without a name is called *run*, so that it can be shared.

    Raises:
        Unusable: The URL is wrong, or the server cannot be reached or used, now or later.
    """
    in_process = url.startswith(SCHEME)
    if url.rstrip("/") == SCHEME.rstrip("/"):
        url = SCHEME + run
    place = SCHEME if in_process else place_of(url)
    if not in_process:
        await _check(url, place)
    async with manager_of(url) as locks:
        try:
            await _try_out(locks, f"{run}-probe")
            yield Server(url, place, locks, in_process)
        except REFUSALS as error:
            if in_process and "unknown command" in str(error):  # fakeredis without its Lua
                raise Unusable(_NO_MEMORY) from None
            raise Unusable(f"Redis at {place} cannot be used: {reason(error, url)}") from None


async def delete_keys(
    client: Redis, name: str, prefix: str = "aiolocks:", kinds: Sequence[str] = ("lock", "semaphore")
) -> None:
    """Delete all keys of a name that is no longer used. Otherwise they would expire after a day."""
    for kind in kinds:
        keys = Keys(prefix, kind, name)
        await client.delete(keys.base, *map(keys.part, (b"fence", b"meta", b"queue", b"ticket")))


async def _try_out(locks: LockManager, name: str) -> None:
    lease = await locks.lock(name, ttl=1).try_acquire()
    if lease is not None:
        await lease.release()
    await delete_keys(locks.client, name)


def manager_of(url: str) -> LockManager:
    try:
        return LockManager.from_url(url)
    except ImportError:
        raise Unusable(_NO_MEMORY) from None
    except ValueError:
        # P14: the error's text may quote the URL, which may contain a password, so it is not shown.
        raise Unusable("memory:// takes a name and nothing else, such as memory://tests") from None


def place_of(url: str) -> str:
    return clients.place_of(clients.pool_of(client_of(url)))


def client_of(url: str) -> Any:
    """Return a client that never retries.

    Raises:
        Unusable: The URL is wrong. Nothing was sent.
    """
    try:
        client = urls.client_of(url, retry=Retry(NoBackoff(), 0), socket_connect_timeout=PATIENCE)
    except ValueError:
        raise Unusable(
            "this --url is not valid; use redis://HOST:PORT/DB, rediss://…, unix:///PATH, "
            "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE, redis+cluster://HOST:PORT,HOST:PORT or memory://, "
            "and write special characters of a password as %XX"
        ) from None
    options = dict(parse_qsl(url.partition("?")[2]))
    if not url.startswith("rediss") and "ssl" not in options and any(name.startswith("ssl_") for name in options):
        raise Unusable(_OPTIONS_OF_TLS)
    make = getattr(clients.pool_of(client), "make_connection", None)
    if make is not None:  # a Cluster's client has checked its options already
        try:
            make()
        except (TypeError, ValueError):
            raise Unusable(_UNKNOWN_OPTIONS) from None
    return client


def node_of(url: str, host: str, port: int) -> Redis:
    """Return a client of one node of the Cluster at *url*, with the same credentials."""
    client: Redis = client_of(urls.of_node(url, host, port))
    return client


@asynccontextmanager
async def answering(url: str, place: str, otherwise: str) -> AsyncGenerator[Redis]:
    """Yield a client that never retries. If the server does not answer, the error says: start it, and *otherwise*.

    Raises:
        Unusable: The server cannot be reached, now or later, or refuses the credentials.
    """
    try:
        client = client_of(url)
        try:
            yield client
        finally:
            await urls.close_client(client)
        return
    except BrokenPipeError:
        raise  # the reader of our output has gone: for its connections redis-py raises its own errors
    except TimeoutError:
        why = f"no answer within {PATIENCE:g} s{await _about_tls(url)}"
    except (*REFUSALS, OSError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise  # the disk of our output is full
        why = reason(error, url)
        if not is_away(error):
            raise Unusable(f"cannot use Redis at {place}: {why}") from None  # it runs, and answered
        why += await _about_tls(url)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise Unusable(f"the server at {place} does not speak Redis's protocol: correct --url") from None
    raise Unusable(f"cannot use Redis at {place} ({why}): start it{otherwise}")


async def _about_tls(url: str) -> str:
    """Return a hint if the port uses TLS and the URL does not, or the other way round. "" means neither."""
    scheme, _, _ = url.partition("://")
    plain = not scheme.startswith("rediss")
    if not any(await asyncio.gather(*(_answers(host, port, tls=plain) for host, port in _ports(url)))):
        return ""
    _, plus, kind = scheme.partition("+")
    if plain:
        return f"; this port speaks TLS: rediss{plus}{kind}://"
    return f"; this port speaks without TLS: redis{plus}{kind}://"


def _ports(url: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of *url*; none if it is a unix socket."""
    pool = clients.pool_of(client_of(url))
    if isinstance(pool, NodesManager):
        return [(str(node.host), int(node.port)) for node in pool.startup_nodes.values()]
    pools = [one.connection_pool for one in sentinels_of(pool)] if behind_sentinels(pool) else [pool]
    options = [one.connection_kwargs for one in pools]
    return [(one["host"], one.get("port", 6379)) for one in options if "host" in one]


async def _answers(host: str, port: int, *, tls: bool) -> bool:
    """Whether a Redis answers at this port, asked with TLS or without."""
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE  # no secret is sent, and no answer trusted
    try:
        async with asyncio.timeout(_TLS_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port, ssl=unchecked if tls else None)
            try:
                writer.write(b"PING\r\n")
                return (await reader.read(1)) in (b"+", b"-")
            finally:
                writer.transport.abort()  # over TLS, `close()` would wait for the server beyond the end of the loop
    except (OSError, ValueError):  # a TimeoutError among them
        return False


async def _check(url: str, place: str) -> None:
    """Raise Unusable unless the server answers and is new enough."""
    async with answering(url, place, ", correct --url, or omit --url") as client, asyncio.timeout(PATIENCE):
        version = await _version(client)
    if version and version < OLDEST:
        raise Unusable(f"Redis at {place} is {'.'.join(map(str, version))}; aiolocks needs 6.2 or newer")


async def ping(client: Any) -> None:
    """Raise an error unless a Redis answers. `answering` turns it into one line."""
    try:
        if not await client.ping():
            raise TypeError("not PONG")
    except ResponseError:
        pass  # without the right to PING


async def _version(client: Any) -> tuple[int, ...]:
    await ping(client)
    try:
        info: dict[str, Any] = await client.info("server")
        return tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    except (ResponseError, KeyError, ValueError):
        return ()  # not allowed to ask, or a server with other version numbers


def reason(error: Exception, url: str) -> str:
    """Return *error* as one short line, without the URL's password."""
    if isinstance(error.__context__, ConnectionRefusedError):
        return "connection refused"
    if _is_refused(error):
        return _credentials_hint(error, url)
    if isinstance(error, NoPermissionError) and "lacks the right" not in str(error):  # errors of locks have it already
        error = explained(error, lambda: b"")
    text = " ".join(str(error).split()).partition(" : <")[0].rstrip(".") or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "its certificate is not trusted: if its authority is your own, add ?ssl_ca_certs=FILE"
    password = _options_of(url).get("password")
    if password:
        text = text.replace(password, "…")
    return text if len(text) <= 120 else text[:119] + "…"


def is_away(error: Exception) -> bool:
    """Whether the server did not answer, so that starting it may help."""
    return isinstance(error, _AWAY) and not _is_refused(error)


async def trouble(error: Exception, url: str) -> str:
    """Return `reason`, and a hint if only one side uses TLS."""
    return reason(error, url) + (await _about_tls(url) if is_away(error) else "")


def _options_of(url: str) -> dict[str, Any]:
    options: dict[str, Any] = {} if url.startswith(SCHEME) else clients.pool_of(client_of(url)).connection_kwargs
    return options


def _is_refused(error: Exception) -> bool:
    """Whether the user or the password is wrong or missing. For Sentinels, only redis-py's text says so."""
    words = ("authenticated", "AuthenticationError", "username-password")
    return isinstance(error, AuthenticationError) or any(word in str(error) for word in words)


def _credentials_hint(error: Exception, url: str) -> str:
    """Return the problem with the user or password, and where to set them."""
    by_sentinel = isinstance(error, MasterNotFoundError)
    options = dict(parse_qsl(urlsplit(url).query)) if by_sentinel else _options_of(url)
    given = options.get("sentinel_password" if by_sentinel else "password")
    who, how = ("a Sentinel", "…?sentinel_username=USER&sentinel_password=PASSWORD") if by_sentinel else (
        "it", "redis://USER:PASSWORD@HOST"
    )  # fmt: skip
    why = f"{who} refuses this user or password: correct it" if given else f"{who} asks for a password: give it"
    return f"{why} in {URL_VARIABLE} or --url, as {how}"
