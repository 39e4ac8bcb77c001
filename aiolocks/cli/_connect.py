"""How a command gets to its server: one check that everything is there, or one line that says what is missing."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from aiolocks import LockManager

from .._keys import Keys
from .._memory import SCHEME
from ._errors import Unusable

_PATIENCE = 5.0
"""Seconds for the first answer."""

_OLDEST = (6, 2)

_NO_MEMORY = 'memory:// needs the in-memory server: pip install "aiolocks[demo]", or give the --url of a Redis'


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers and that grants locks. `url` may hold credentials; `place` may be printed."""

    url: str
    place: str
    locks: LockManager
    in_process: bool


@asynccontextmanager
async def connect(url: str, run: str) -> AsyncGenerator[Server]:
    """Yield the server at *url*; a `memory://` without a name gets *run* as its own, so that it can be shared.

    Raises:
        Unusable: The URL is wrong, the server cannot be reached or lacks something; also when it is lost later.
    """
    in_process = url.startswith(SCHEME)
    if url.rstrip("/") == SCHEME.rstrip("/"):
        url = SCHEME + run
    place = SCHEME if in_process else _place(url)
    if not in_process:
        await _check(url, place)
    async with _manager(url) as locks:
        try:
            await _try_out(locks, f"{run}-probe")
            yield Server(url, place, locks, in_process)
        except RedisError as error:
            if in_process and "unknown command" in str(error):  # fakeredis without its Lua
                raise Unusable(_NO_MEMORY) from None
            raise Unusable(f"Redis at {place} is of no use: {_reason(error, url)}") from None


async def forget(client: Redis, name: str) -> None:
    """Delete what is left of a lock or semaphore that nobody uses any more; it would expire after a day."""
    for kind in ("lock", "semaphore"):
        keys = Keys("aiolocks:", kind, name)
        await client.delete(keys.base, *map(keys.part, (b"fence", b"meta", b"queue")))


async def _try_out(locks: LockManager, name: str) -> None:
    lease = await locks.lock(name, ttl=1).try_acquire()
    if lease is not None:
        await lease.release()
    await forget(locks.client, name)


def _manager(url: str) -> LockManager:
    try:
        return LockManager.from_url(url)
    except ImportError:
        raise Unusable(_NO_MEMORY) from None
    except ValueError:
        # Neither here nor below the text of the error: it may quote from the URL, and that may hold a password.
        raise Unusable("memory:// takes a name and nothing else, such as memory://tests") from None


def _place(url: str) -> str:
    parts = _client(url).connection_pool.connection_kwargs
    return str(parts.get("path") or f"{parts.get('host', 'localhost')}:{parts.get('port', 6379)}")


def _client(url: str) -> Redis:
    try:
        client: Redis = Redis.from_url(  # pyright: ignore[reportUnknownMemberType]  # its **kwargs are not annotated
            url, retry=Retry(NoBackoff(), 0), socket_connect_timeout=_PATIENCE
        )
        return client
    except (ValueError, TypeError):
        raise Unusable(
            "this --url cannot be read; it looks like redis://HOST:PORT/DB, rediss://…, unix:///PATH or memory://, "
            "with special characters of a password written as %XX"
        ) from None


async def _check(url: str, place: str) -> None:
    """Raise Unusable unless the server answers at once and is new enough."""
    client = _client(url)
    try:
        async with client, asyncio.timeout(_PATIENCE):
            version = await _version(client)
    except TimeoutError:
        reason = f"no answer within {_PATIENCE:g} s"
    except (RedisError, OSError) as error:
        reason = _reason(error, url)
    except (ValueError, TypeError):
        reason = "the URL has options that redis-py does not know"
    else:
        if version and version < _OLDEST:
            raise Unusable(f"Redis at {place} is {'.'.join(map(str, version))}; aiolocks needs 6.2 or newer")
        return
    raise Unusable(f"cannot use Redis at {place} ({reason}): start it, correct --url, or leave --url out")


async def _version(client: Any) -> tuple[int, ...]:
    await client.ping()
    try:
        info: dict[str, Any] = await client.info("server")
        return tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    except (ResponseError, KeyError, ValueError):
        return ()  # not allowed to ask, or a server that counts otherwise


def _reason(error: Exception, url: str) -> str:
    """Return what happened in one short line, without what the URL keeps secret."""
    if isinstance(error.__context__, ConnectionRefusedError):
        return "connection refused"
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if isinstance(error, AuthenticationError) or "authenticated" in text:
        return "it asks for another user or password"
    password = None if url.startswith(SCHEME) else _client(url).connection_pool.connection_kwargs.get("password")
    if password:
        text = text.replace(password, "…")
    return text if len(text) <= 120 else text[:119] + "…"
