"""`with_lock`: a coroutine function that runs under a lock whose name is made of its arguments."""

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from redis.asyncio import Redis

from ._core.options import LeaseOptions, RedlockOptions, TrackedOptions
from ._core.teaching import needing
from ._engine.lease import Lease
from ._manager import LockManager
from ._primitives.base import Acquirable
from ._primitives.hierarchy import HierarchicalLock
from ._primitives.lock import Lock
from ._primitives.rwlock import RWLock
from ._primitives.semaphore import Semaphore
from ._primitives.versioned import Versioned
from ._redis.clients import pool_of

P = ParamSpec("P")
R = TypeVar("R")

One = Redis | LockManager
Clients = One | Sequence[Redis]
Block = AbstractAsyncContextManager[Lease]


Kind = Callable[[Redis, str], Block]
"""A primitive that takes a client and a name, or a function that makes a block of them; the options are passed as
well."""

KindOfMany = Callable[[Redis, list[str]], Block]
"""The same with several names, such as `MultiLock`."""

KindOfServers = Callable[[Sequence[Redis], str], Block]
"""The same with several clients, such as `Redlock`."""


class Decorator(Protocol):
    """What `with_lock` returns: it leaves a function's own signature as it is."""

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[Any, Any, R]]: ...


@overload
def with_lock(
    client: One | Callable[[], One], name: str, *, kind: Kind = Lock, **options: Unpack[TrackedOptions]
) -> Decorator: ...
@overload
def with_lock(
    client: One | Callable[[], One],
    name: str,
    *,
    kind: type[Semaphore],
    limit: int | None,
    **options: Unpack[LeaseOptions],
) -> Decorator: ...
@overload
def with_lock(
    client: One | Callable[[], One], name: Sequence[str], *, kind: KindOfMany, **options: Unpack[TrackedOptions]
) -> Decorator: ...
@overload
def with_lock(
    client: Sequence[Redis] | Callable[[], Sequence[Redis]],
    name: str,
    *,
    kind: KindOfServers,
    **options: Unpack[RedlockOptions],
) -> Decorator: ...
@needing(("client", "name"), 'with_lock takes a client and a name: @with_lock(redis, "invoice:{invoice_id}")')
def with_lock(
    client: Clients | Callable[[], Clients],
    name: str | Sequence[str],
    *,
    kind: Callable[..., Block] = Lock,
    **options: object,
) -> Decorator:
    """Have a coroutine function hold a lock while it runs::

        @with_lock(redis, "invoice:{invoice_id}", ttl=10, acquire_timeout=5)
        async def send(invoice_id: int, *, copy: bool = False) -> None: ...

    Each call waits for the lock, runs, and releases it; see the primitive's ``async with``. It waits for ever, unless
    there is `acquire_timeout`. The function's result, its exceptions and its signature stay the same.

    Args:
        client: A `redis.asyncio.Redis`; a `LockManager`, whose defaults then apply; or a function without parameters
            that returns one of them and is called each time: for a client that does not exist yet when the module
            is imported. A list of clients for a *kind* that takes a list.
        name: What to lock: a template over the function's arguments, defaults included, written as for `str.format`:
            ``"invoice:{invoice.id}"``, ``"shop:{keys[0]}"``, ``"{self.name}"``. Quote texts that may contain the
            separator, as in ``"{a!r}:{b!r}"``; without quotes, two different calls can share a name. A list of
            templates for a *kind* that takes a list of names.
        kind: The primitive, or a function that makes one: it is called with client, name and *options*, as in
            ``kind=Semaphore, limit=10``, and what it returns is entered. For a primitive with modes, choose one:
            ``kind=lambda client, name, **options: RWLock(client, name, **options).read``.
        options: The primitive's. If a *kind* of your own needs more, use `functools.partial`.

    Raises:
        TypeError, ValueError: At decoration: not a coroutine function; a template that is invalid or names what is not
            an argument; a *kind* that is not one or cannot be entered; options that the primitive refuses (at the call,
            if *client* is a function).

    A call raises what the primitive raises on entering and leaving a block: AcquireTimeoutError, LeaseLostError,
    RedisError; and what formatting raises, such as AttributeError, before Redis is asked.
    """
    templates = _templates(name)
    _check_kind(kind)
    if isinstance(client, (type, Acquirable)):
        pool_of(cast("Redis", client))  # both can be called, a class to make a client for each call

    def make(names: list[str]) -> Block:
        found = client() if callable(client) else client
        target = names[0] if isinstance(name, str) else names
        if isinstance(found, LockManager):
            made = found._make(kind, target, options)
        else:
            made = kind(found, target, **options)
        _check_enterable(type(made))
        return made

    def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"with_lock is for coroutine functions (async def), not for {function!r}")
        signature = inspect.signature(function)
        for template in templates:
            _check(template, signature)
        if not callable(client):
            make(templates)  # checks the options

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            async with make([template.format_map(bound.arguments) for template in templates]):
                return await function(*args, **kwargs)

        return locked

    return decorate


def _templates(name: object) -> list[str]:
    if isinstance(name, str):
        return [name]
    if not isinstance(name, Iterable) or isinstance(name, bytes):
        raise TypeError(f"name must be a template, which is a str, or a list of them, not {type(name).__name__}")
    return list(cast("Iterable[str]", name))


def _check_kind(kind: object) -> None:
    """Raise TypeError unless *kind* may be a primitive, or a function that makes one."""
    if not callable(kind) or isinstance(kind, Acquirable):
        raise TypeError(
            f"kind must be a primitive, such as Lock or Semaphore, or a function that makes one, not {kind!r}"
        )
    if isinstance(kind, type):
        _check_enterable(kind)


def _check_enterable(made: type) -> None:
    """Raise a TypeError that says what to do if instances of *made* cannot be entered."""
    if made in (RWLock, HierarchicalLock):
        raise TypeError(
            f"{made.__name__} cannot be held itself, only one of its modes: "
            f"kind=lambda client, name, **options: {made.__name__}(client, name, **options).read"
        )
    if made is Versioned:
        raise TypeError("Versioned holds nothing: let the function itself call its update()")
    if not hasattr(made, "__aenter__"):
        raise TypeError(f"kind must make something that `async with` can enter, not {made.__name__}")


class _Anything:
    """Stands for any argument, with any attribute, item and format."""

    def __getattr__(self, _: str) -> "_Anything":
        return self

    def __getitem__(self, _: str) -> "_Anything":
        return self

    def __format__(self, _: str) -> str:
        return ""


def _check(template: str, signature: inspect.Signature) -> None:
    """Raise TypeError or ValueError unless *template* is a template over the parameters of *signature*."""
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
        raise ValueError(f"{template!r} is not a template of names: {error}") from None
