"""`with_lock`: a coroutine function that runs under a lock whose name is made of its arguments."""

import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec, TypeVar

from redis.asyncio import Redis

from ._lease import Lease
from ._lock import Lock
from ._manager import LockManager

P = ParamSpec("P")
R = TypeVar("R")

Clients = Redis | LockManager | Sequence[Redis]
Kind = Callable[..., AbstractAsyncContextManager[Lease, None]]


def with_lock(
    client: Clients | Callable[[], Clients],
    name: str | Sequence[str],
    *,
    kind: Kind = Lock,
    **options: object,
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Have a coroutine function hold a lock while it runs::

        @with_lock(redis, "invoice:{invoice_id}", ttl=10, acquire_timeout=5)
        async def send(invoice_id: int, *, copy: bool = False) -> None: ...

    Each call waits for the lock, runs, and releases it; see the primitive's ``async with``. What the function returns
    and raises is unchanged, and so is its signature.

    Args:
        client: A `redis.asyncio.Redis`, a `LockManager`, whose defaults then count, or a function without parameters
            that returns one of them, called anew each time: for a client that does not exist yet when the module is
            imported. A list of clients for a *kind* that takes one.
        name: What to lock: a template over the function's arguments, as `str.format` has it, defaults included:
            ``"invoice:{invoice.id}"``, ``"shop:{keys[0]}"``, ``"{self.name}"``. A list of templates for a *kind* that
            takes a list of names.
        kind: The primitive, or whatever makes one: it is called with client, name and *options*, as in
            ``kind=Semaphore, limit=10``, and what it returns is entered.
        options: Of the primitive.

    Raises:
        TypeError, ValueError: At decoration: no coroutine function, a template that is none or that names what is no
            argument; and options that the primitive refuses, unless *client* is a function: then at the call.

    A call raises what the primitive raises on entering and leaving a block: AcquireTimeoutError, LeaseLostError,
    RedisError; and what formatting raises, such as AttributeError, before anything is asked.
    """
    templates = [name] if isinstance(name, str) else list(name)

    def make(names: list[str]) -> AbstractAsyncContextManager[Lease, None]:
        found = client() if callable(client) else client
        target = names[0] if isinstance(name, str) else names
        if isinstance(found, LockManager):
            return found._make(kind, target, options)
        return kind(found, target, **options)

    def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"with_lock is for coroutine functions (async def), not for {function!r}")
        signature = inspect.signature(function)
        for template in templates:
            _check(template, signature)
        if not callable(client):
            make(["checks the options"])

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            async with make([template.format_map(bound.arguments) for template in templates]):
                return await function(*args, **kwargs)

        return locked

    return decorate


class _Anything:
    """Stands for any argument, whatever a template asks of it."""

    def __getattr__(self, _: str) -> "_Anything":
        return self

    def __getitem__(self, _: str) -> "_Anything":
        return self

    def __format__(self, _: str) -> str:
        return ""


def _check(template: str, signature: inspect.Signature) -> None:
    """Raise TypeError or ValueError unless *template* is one over the parameters of *signature*."""
    if not isinstance(template, str):
        raise TypeError(f"a name is made by a template, which is a str, not {type(template).__name__}")
    try:
        template.format_map(dict.fromkeys(signature.parameters, _Anything()))
    except KeyError as unknown:
        known = ", ".join(signature.parameters) or "none"
        raise ValueError(
            f"{template!r} names {unknown}, which is no parameter of the function; it has: {known}"
        ) from None
    except ValueError as error:
        raise ValueError(f"{template!r} is no template of names: {error}") from None
