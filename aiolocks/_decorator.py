"""`with_lock` and `once`: a coroutine function that runs while it holds a lock, or of which one call in the fleet runs.

The name is made of the function's arguments.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from redis.asyncio import Redis

from ._core.hints import NameHints, explains_misuse
from ._core.kinds import KIND_OF_CLASS
from ._core.options import Duration, LeaseOptions, RedlockOptions, TrackedOptions
from ._engine.lease import Lease
from ._manager import LockManager
from ._once import Once, OnceOptions
from ._primitives.base import Acquirable
from ._primitives.lock import Lock
from ._primitives.semaphore import Semaphore
from ._redis.clients import pool_of

P = ParamSpec("P")
R = TypeVar("R")

One = Redis | LockManager
Clients = One | Sequence[Redis]
Block = AbstractAsyncContextManager[Lease]


Kind = Callable[[Redis, str], Block]
"""A primitive that takes a client, a name and options, or a function of these that returns a block."""

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
@explains_misuse
def with_lock(
    client: Clients | Callable[[], Clients],
    name: str | Sequence[str],
    *,
    kind: Callable[..., Block] = Lock,
    **options: object,
) -> Decorator:
    """Hold a lock while a coroutine function runs::

        @with_lock(redis, "invoice:{invoice_id}", ttl=10, acquire_timeout=5)
        async def send(invoice_id: int, *, copy: bool = False) -> None: ...

    Each call waits for the lock, runs the function, and releases the lock, like the primitive's ``async with``. Without
    `acquire_timeout` it waits for ever. The function's result, exceptions and signature stay the same.

    Args:
        client: A `redis.asyncio.Redis`, or a `LockManager`, whose defaults then apply. It can also be a function
            without parameters that returns one of them and runs for each call: for a client that does not exist yet
            when the module is imported. A list of clients for a *kind* that takes a list.
        name: What to lock: a template over the function's arguments, defaults included, written as for `str.format`:
            ``"invoice:{invoice.id}"``, ``"shop:{keys[0]}"``, ``"{self.name}"``. Quote texts that may contain the
            separator, as in ``"{a!r}:{b!r}"``; without quotes, two different calls can share a name. A list of
            templates for a *kind* that takes a list of names.
        kind: The primitive, or a function that makes one. It is called with client, name and *options*, as in
            ``kind=Semaphore, limit=10``, and its result is entered. For a primitive with modes, choose one:
            ``kind=lambda client, name, **options: RWLock(client, name, **options).read``.
        options: The primitive's. If a *kind* of your own needs more, use `functools.partial`.

    Raises:
        TypeError, ValueError: Raised at decoration: for a function that is not a coroutine function, for a template
            that is invalid or names something that is not an argument, for a *kind* that cannot be entered, and for
            options that the primitive refuses. If *client* is a function, the last two are raised by each call.

    A call raises the errors of entering and leaving a block: AcquireTimeoutError, LeaseLostError, RedisError. Errors of
    formatting, such as AttributeError, are raised before Redis is asked.
    """
    templates = _templates(name)
    _check_kind(kind)
    _check_client(client)

    def make(names: list[str]) -> Block:
        found = client() if callable(client) else client
        target = names[0] if isinstance(name, str) else names
        if isinstance(found, LockManager):
            made = found._make(kind, options, target)
        else:
            made = kind(found, target, **options)
        _check_enterable(type(made))
        return made

    def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        names = _names_of("with_lock", function, templates)
        if not callable(client):
            make(templates)  # checks the options

        @functools.wraps(function)
        async def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            async with make(names(*args, **kwargs)):
                return await function(*args, **kwargs)

        return locked

    return decorate


@explains_misuse
def once(client: One | Callable[[], One], name: str, *, keep: Duration, **options: Unpack[OnceOptions]) -> Decorator:
    """Let one call in the fleet run a coroutine function, and give its outcome to all others::

        @once(redis, "rates:{day}", keep=3600)
        async def rates(day: str) -> dict[str, float]: ...

    Each call is `Once.run` of the function with the call's arguments, under the name that they make. The function's
    signature stays the same. Its result must be JSON, unless `dumps` and `loads` say otherwise.

    Args:
        client, name: As for `with_lock`.
        keep, options: As for `Once`.

    Raises:
        TypeError, ValueError: As for `with_lock`, at decoration. If *client* is a function, those of the options are
            raised by each call.

    A call raises the errors of `Once.run`. Errors of formatting are raised before Redis is asked.
    """
    _check_client(client)

    def make(name: str) -> Once:
        found: One = client() if callable(client) else client
        if isinstance(found, LockManager):
            return found.once(name, keep=keep, **options)
        return Once(found, name, keep=keep, **options)

    def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        names = _names_of("once", function, [name])
        if not callable(client):
            make(name)  # checks the options

        @functools.wraps(function)
        async def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return await make(*names(*args, **kwargs)).run(lambda: function(*args, **kwargs))

        return run

    return decorate


def _names_of(
    decorator: str, function: Callable[P, Coroutine[Any, Any, R]], templates: list[str]
) -> Callable[P, list[str]]:
    """Check *templates* against the parameters of *function*. Return the function from its arguments to the names."""
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"{decorator} is for coroutine functions (async def), not for {function!r}")
    signature = inspect.signature(function)
    for template in templates:
        _check(template, signature)

    def names(*args: P.args, **kwargs: P.kwargs) -> list[str]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return [template.format_map(bound.arguments) for template in templates]

    return names


def _templates(name: object) -> list[str]:
    if isinstance(name, str):
        return [name]
    if not isinstance(name, Iterable) or isinstance(name, bytes):
        raise TypeError(f"name must be a template, which is a str, or a list of them, not {type(name).__name__}")
    return list(cast("Iterable[str]", name))


def _check_client(client: object) -> None:
    if isinstance(client, (type, Acquirable)):
        pool_of(cast("Redis", client))  # raises: both are callable, but neither is a function that returns a client


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
    kind = KIND_OF_CLASS.get(made.__name__) if NameHints in made.__mro__ else None
    if kind is not None and kind.modes:
        raise TypeError(
            f"{made.__name__} cannot be held itself, only one of its modes: "
            f"kind=lambda client, name, **options: {made.__name__}(client, name, **options).{kind.modes[0]}"
        )
    if kind is not None and not kind.leased:
        instead = "enter it" if kind.queued else "call its update()"
        raise TypeError(f"{made.__name__} holds nothing: let the function itself {instead}")
    if kind is not None and kind.loop:
        raise TypeError(f"{made.__name__} runs a function itself: use its run()")
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
        raise TypeError(f"name must be a template, which is a str, not {type(template).__name__}")
    try:
        template.format_map(dict.fromkeys(signature.parameters, _Anything()))
    except KeyError as unknown:
        known = ", ".join(signature.parameters) or "none"
        raise ValueError(
            f"{template!r} names {unknown}, which is no parameter of the function; it has: {known}"
        ) from None
    except ValueError as error:
        raise ValueError(f"{template!r} is not a template of names: {error}") from None
