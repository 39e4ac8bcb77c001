"""A call with a wrong keyword raises a TypeError that says what to use instead.

Signatures show only the keywords that exist. A correct call pays for one more frame: 0.1 or 0.2 µs.
"""

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, cast

from .options import QUORUM_OF_PERMITS, UNSET, Options

F = TypeVar("F", bound=Callable[..., Any])

_ELSEWHERE = {
    "timeout": "ttl= for how long a lease lasts, or acquire_timeout= for how long to wait",
    "blocking_timeout": "acquire_timeout=",
    "blocking": "try_acquire() to ask once without waiting",
    "expire": "ttl=",
    "lock_timeout": "ttl=",
    "limit": "a Semaphore, which has one",
    "permits": "a Semaphore, with permits= in acquire() or hold()",
}
_IMPOSSIBLE = {"limit": QUORUM_OF_PERMITS, "permits": QUORUM_OF_PERMITS, "replicas": "its servers are independent"}
_UNTRACKED = {
    "Redlock": "no single server knows whether a majority still has the lease",
    "Semaphore": "its key changes with each grant and release of others",
    "HierarchicalLock": "its keys change with each grant and release of others",
}
_NEEDLESS = {
    "sleep": "waiters are woken, they do not poll",
    "thread_local": "an acquisition's state is in its Lease",
    "lock_class": "each primitive is a class of its own",
    "raise_on_release_error": "a release that could not be confirmed is a warning, a lost lease a LeaseLostError",
}
_IN_CALLS = {"blocking_timeout": "timeout=", "acquire_timeout": "timeout=", "blocking": "try_acquire()"}


def teaching(function: F) -> F:
    """Make *function*, a method of a primitive, explain wrong keywords.

    Its name, docstring and signature stay as they are.
    """
    call = _timed(function) if function.__kwdefaults__ == {"timeout": UNSET} else _any(function)
    if inspect.iscoroutinefunction(function) or function.__name__ == "acquire":  # which returns a block as well
        _mark_coroutine_function(call)
    return cast("F", functools.wraps(function)(call))


def _any(function: Callable[..., Any]) -> Callable[..., Any]:
    code = function.__code__
    known = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])

    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError:
            for name in keywords:
                if name not in known:
                    raise TypeError(_explained(function, args, name)) from None
            raise

    return call


def _timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for functions that take only a timeout; copying keywords would take half as long as all of `hold()`."""

    def call(self: object, *, timeout: object = UNSET, **unknown: object) -> Any:
        for name in unknown:
            raise TypeError(_explained(function, (self,), name))
        return function(self, timeout=timeout)

    return call


def _mark_coroutine_function(call: Any) -> None:
    """Mark *call* as a coroutine function; `unittest.mock` looks at that."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(call)
    else:
        call._is_coroutine = vars(asyncio.coroutines)["_is_coroutine"]


def _explained(function: Callable[..., Any], args: tuple[Any, ...], name: str) -> str:
    """Return what to use instead of the keyword *name*."""
    owner, _, verb = function.__qualname__.rpartition(".")
    if verb == "__init__":
        return _of_constructor(owner, name)
    called = getattr(args[0], "_called", owner) if args else owner  # of an RWLock's mode: "RWLock.read"
    return _of_call(f"{called}.{verb}()", verb, name)


def _of_constructor(where: str, name: str) -> str:
    if name == "track" and where in _UNTRACKED:
        return f"{where} has no {name!r}: {_UNTRACKED[where]}"
    if where == "Redlock" and name in _IMPOSSIBLE:
        return f"{where} has no {name!r}: {_IMPOSSIBLE[name]}"
    if name in _ELSEWHERE:
        return f"{where} has no {name!r}: use {_ELSEWHERE[name]}"
    if name in _NEEDLESS:
        return f"{where} has no {name!r}, and needs none: {_NEEDLESS[name]}"
    return f"{where} has no {name!r}; its options are {', '.join(_names())}"


def _of_call(where: str, verb: str, name: str) -> str:
    if verb == "try_acquire" and (name == "timeout" or name in _IN_CALLS):
        return f"{where} has no {name!r}, as it never waits: use acquire(timeout=...) to wait"
    if name in _IN_CALLS:
        return f"{where} has no {name!r}: use {_IN_CALLS[name]}"
    if name in _names():
        return f"{where} has no {name!r}: it belongs to the constructor"
    return f"{where} got an unexpected keyword argument {name!r}"


def _names() -> list[str]:
    """Return the options that every constructor takes."""
    return [*(option.name for option in fields(Options) if option.init), "prefix"]
