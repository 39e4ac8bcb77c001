"""A decorator for aiohttp handlers that holds a lock around them and answers "busy" in terms of HTTP.

The one rule: what the handler returns is sent after the release, so that no lost lease is answered with success.
"""

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Literal, TypeVar, TypeVarTuple

from redis.exceptions import RedisError

from . import AcquireTimeoutError, Lease, LeaseLostError, Lock, LockManager, Semaphore
from ._manager import check_manager

try:
    from aiohttp import web
except ImportError as missing:
    raise ImportError("aiolocks.aiohttp needs aiohttp: pip install 'aiohttp>=3.10'") from missing

__all__ = ["LOCKS", "HTTPLocked", "locked"]

log = logging.getLogger("aiolocks")

LOCKS = web.AppKey("LOCKS", LockManager)
"""Where an application keeps its manager: ``app[LOCKS]``. Those nested in it find it too."""

Target = TypeVarTuple("Target")
Response = TypeVar("Response", bound=web.StreamResponse)


class HTTPLocked(web.HTTPClientError):
    """423 Locked, which aiohttp has no class for."""

    status_code = 423


_BUSY: dict[int, type[web.HTTPError]] = {423: HTTPLocked, 409: web.HTTPConflict, 503: web.HTTPServiceUnavailable}


def _app_locks(request: web.Request) -> LockManager:
    try:
        return request.config_dict[LOCKS]
    except KeyError:
        raise RuntimeError("app[LOCKS] is missing: put a LockManager there, or say locks= to locked()") from None


def locked(
    name: str | Callable[[web.Request], str],
    *,
    limit: int | None = None,
    timeout: float | None = 0.0,
    status: Literal[423, 409, 503] = 423,
    locks: Callable[[web.Request], LockManager] = _app_locks,
) -> Callable[[Callable[[*Target, Lease], Awaitable[Response]]], Callable[[*Target], Coroutine[Any, Any, Response]]]:
    """Return a decorator that holds a lock while the handler runs, and passes the lease as its last argument.

    ::

        @routes.post("/carts/{cart_id}/checkout")
        @locked("carts:{cart_id}", timeout=2)
        async def checkout(request: web.Request, lease: Lease) -> web.Response: ...

    Handlers may be functions, methods that take the request, and methods of a `web.View`.

    Args:
        name: What to lock. A template over ``match_info``, whose values are text as it stands in the URL: if ``7`` and
            ``007`` are one cart, say so in the route (``{cart_id:[1-9][0-9]*}``), or give a function of the request.
        limit: Hold one permit of a semaphore of so many, instead of a lock.
        timeout: Seconds to wait before the answer is "busy"; 0 asks once, None waits for ever.
        status: What "busy" is answered with.
        locks: A function of the request that returns the manager, whose defaults count.

    Raises:
        TypeError: A wrong type for *name* or *locks*. At once.
        ValueError: Another status. At once.
        RuntimeError: At the first request: no ``app[LOCKS]``, or a template over what the route has not.

    A request fails with `HTTPLocked`, `web.HTTPConflict` or `web.HTTPServiceUnavailable` when the lock was busy, and
    with the last when Redis could not be asked or a `LeaseLostError` came out of the handler or its lock; all with
    ``Retry-After`` in whole seconds.

    When the lease is lost, the handler is cancelled at its next await; a stream that it has begun is cut off. If the
    client goes, aiohttp cancels the handler, and so frees the lock, only under ``handler_cancellation=True``; else the
    lock is held until the handler ends.
    """
    if status not in _BUSY:
        raise ValueError(f"status must be 423, 409 or 503, not {status!r}")
    if not isinstance(name, str) and not callable(name):
        raise TypeError(f"name must be a template or a function of the request, not {type(name).__name__}")
    if not callable(locks):
        raise TypeError(f"locks must be a function that returns a LockManager, not {type(locks).__name__}")

    def decorate(
        handler: Callable[[*Target, Lease], Awaitable[Response]],
    ) -> Callable[[*Target], Coroutine[Any, Any, Response]]:
        @wraps(handler)
        async def holding(*target: *Target) -> Response:
            arguments: tuple[Any, ...] = target
            request = arguments[-1].request if isinstance(arguments[-1], web.View) else arguments[-1]
            text = _from_route(name, request) if isinstance(name, str) else name(request)
            manager = locks(request)
            check_manager(manager, "app[LOCKS]")
            lock = manager.lock(text) if limit is None else manager.semaphore(text, limit)
            async with _held(lock, timeout, _BUSY[status]) as lease:
                return await handler(*target, lease)

        return holding

    return decorate


def _from_route(template: str, request: web.Request) -> str:
    try:
        return template.format_map(request.match_info)
    except KeyError as missing:
        known = ", ".join(request.match_info) or "none"
        raise RuntimeError(
            f"locked({template!r}) names {missing}, which is no parameter of the route {request.path!r}; "
            f"it has: {known}. What is elsewhere takes a function of the request"
        ) from None


@asynccontextmanager
async def _held(lock: Lock | Semaphore, timeout: float | None, busy: type[web.HTTPError]) -> AsyncGenerator[Lease]:
    try:
        lease = await lock.acquire(timeout=timeout)
    except AcquireTimeoutError as error:
        raise busy(headers=_retry_after(error.retry_after)) from error
    except (RedisError, OSError) as error:
        log.warning("answering 503: Redis could not be asked for %r: %s: %s", lock, type(error).__name__, error)
        raise web.HTTPServiceUnavailable(headers=_retry_after()) from error
    try:
        async with lease:
            yield lease
    except LeaseLostError as lost:
        log.warning("answering 503: %s", lost)
        raise web.HTTPServiceUnavailable(headers=_retry_after()) from lost


def _retry_after(seconds: float = 1.0) -> dict[str, str]:
    return {"Retry-After": str(max(math.ceil(seconds), 1))}
