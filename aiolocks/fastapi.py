"""A FastAPI dependency that holds a lock around an endpoint and answers "busy" in terms of HTTP.

The one rule: the response leaves after the release, so that nobody is told of success when the lease was lost.
"""

import inspect
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from string import Formatter
from typing import Annotated, Any, Literal

from redis.exceptions import RedisError

from . import AcquireTimeoutError, Lease, LeaseLostError, LockManager
from ._manager import check_manager

try:
    from fastapi import Depends, HTTPException, Request, exceptions, params
    from pydantic import TypeAdapter, ValidationError
except ImportError as missing:
    raise ImportError("aiolocks.fastapi needs FastAPI: pip install 'fastapi>=0.121'") from missing

__all__ = ["app_locks", "locked"]
log = logging.getLogger("aiolocks")


async def app_locks(request: Request) -> LockManager:
    """Return the manager kept in `app.state.locks`; tests may override this dependency."""
    try:
        manager: LockManager = request.app.state.locks
    except AttributeError:
        raise RuntimeError(
            "app.state.locks is missing: put a LockManager there, as in the lifespan, or say locks= to locked()"
        ) from None
    return manager


def locked(
    name: str | Callable[..., str | Awaitable[str]],
    *,
    limit: int | None = None,
    timeout: float | None = 0.0,
    status: Literal[423, 409, 503] = 423,
    locks: Callable[..., LockManager | Awaitable[LockManager]] = app_locks,
    scope: Literal["function", "request"] = "function",
) -> params.Depends:
    """Return a dependency that holds a lock while the endpoint runs; its value is the lease::

        @app.post("/orders/{order_id}/pay")
        async def pay(order_id: int, lease: Annotated[Lease, locked("orders:{order_id}", timeout=2)]): ...

    Args:
        name: What to lock. A template over the parameters of the path, each converted as the endpoint declares it, so
            that ``/orders/7`` and ``/orders/007`` are one order; or any dependency that returns the name.
        limit: Hold one permit of a semaphore of so many, instead of a lock.
        timeout: Seconds to wait before the answer is "busy"; 0 asks once, None waits for ever.
        status: What "busy" is answered with.
        locks: A dependency that returns the manager, whose defaults count.
        scope: When to release. "function": before the response is sent. "request": after it, as an endpoint that
            streams needs; a loss then cuts the connection, for it is too late to change the status.

    Raises:
        TypeError: A wrong type for *name* or *locks*. At once.
        ValueError: Another status, or a template with anything but names. At once.
        RuntimeError: At the first request: no `app.state.locks`, or a template over what the path has not.

    A request fails with *status* when the lock was busy, and with 503 when Redis could not be asked or a
    `LeaseLostError` came out of the endpoint or its lock; both with ``Retry-After`` in whole seconds.

    When the lease is lost, an `async def` endpoint is cancelled at its next await. A `def` endpoint runs in a thread
    that nothing can stop; its answer is 503, but let it call `lease.check()` before it writes. Nor does the server stop
    an endpoint whose client has gone: the lock is held until it ends.
    """
    if status not in (423, 409, 503):
        raise ValueError(f"status must be 423, 409 or 503, not {status!r}")
    if not isinstance(name, str) and not callable(name):
        raise TypeError(f"name must be a template or a dependency that returns the name, not {type(name).__name__}")
    if not callable(locks):
        raise TypeError(f"locks must be a dependency that returns a LockManager, not {type(locks).__name__}")
    name_of = _from_path(name) if isinstance(name, str) else name

    async def hold(
        manager: Annotated[LockManager, Depends(locks)], text: Annotated[str, Depends(name_of)]
    ) -> AsyncIterator[Lease]:
        check_manager(manager, "app.state.locks")
        lock = manager.lock(text) if limit is None else manager.semaphore(text, limit)
        try:
            lease = await lock.acquire(timeout=timeout)
        except AcquireTimeoutError as busy:
            raise _answer(status, busy.retry_after) from busy
        except (RedisError, OSError) as error:
            log.warning("answering 503: Redis could not be asked for %r: %s: %s", lock, type(error).__name__, error)
            raise _answer(503) from error
        try:
            async with lease:
                yield lease
        except LeaseLostError as lost:
            log.warning("answering 503: %s", lost)
            raise _answer(503) from lost

    return params.Depends(hold, scope=scope)


def _answer(status: int, retry_after: float = 1.0) -> HTTPException:
    return HTTPException(status, headers={"Retry-After": str(max(math.ceil(retry_after), 1))})


def _from_path(template: str) -> Callable[[Request], Awaitable[str]]:
    fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    if not all(field.isidentifier() for field in fields):
        raise ValueError(f"name must be a template over parameters of the path, not {template!r}")

    async def name_of(request: Request) -> str:
        missing = [field for field in fields if field not in request.path_params]
        if missing:
            known = ", ".join(request.path_params) or "none"
            raise RuntimeError(
                f"locked({template!r}) names {missing[0]!r}, which is no parameter of the path {request.url.path!r}; "
                f"it has: {known}. What is elsewhere takes a dependency that returns the name"
            )
        return template.format_map({field: _value(request, field) for field in fields})

    return name_of


def _value(request: Request, field: str) -> object:
    adapter = _adapter(request.scope["endpoint"], field)
    try:  # However the URL spells it, one order has one name.
        return adapter.dump_python(adapter.validate_python(request.path_params[field]), mode="json")
    except ValidationError as error:
        raise exceptions.RequestValidationError([{**e, "loc": ("path", field)} for e in error.errors()]) from error


@cache
def _adapter(endpoint: Callable[..., object], field: str) -> TypeAdapter[Any]:
    parameter = inspect.signature(endpoint, eval_str=True).parameters.get(field)
    return TypeAdapter(str if parameter is None or parameter.annotation is parameter.empty else parameter.annotation)
