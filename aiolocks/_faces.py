"""The faces of asynchronous objects for threads: their methods wait for their namesakes in the loop of `_threads`.

Each method is made from its namesake, so it has its parameters and its docstring, in the words of threads.
"""

import functools
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar, final

from . import _loop_thread
from ._core.hints import missing_attribute
from ._engine.lease import Lease as AsyncLease
from ._engine.lease import state_of
from ._engine.lease_state import GONE_FROM_SERVER
from ._loop_thread import Loop
from ._threads import Call

P = ParamSpec("P")
T = TypeVar("T")
L = TypeVar("L", bound="Lease | None")

_WORDS = (
    (", which also stops the body when the lease is lost", ", which always releases it"), ("async with", "with"),
    ("async for", "for"), ("await ", ""),
    ("a cancellation.", "an interruption, such as Ctrl-C."), ("a cancellation", "an interruption, such as Ctrl-C,"),
    ("Cancelling", "Interrupting"), ("coroutine function", "plain function"),
    ("function is cancelled", "function is cancelled unless a thread runs it"),
    ("cancel the task of run()", "let `lead` return"), ("task", "thread"),
)  # fmt: skip
"""Words about coroutines, and what docstrings and hints say to threads instead."""

_ELSEWHERE = {"upgrade": "RWLock", "upgradeable": "RWLock", "redlock": "Redlock", "hierarchical": "HierarchicalLock"}
"""What only asynchronous classes have, by their names."""

_OF_TEXTS = {"adopt", "touch", "drop"}
"""What asynchronous primitives do with the text of a lease that was handed off."""


class AsyncOnly(TypeError, AttributeError):
    """A TypeError for which `hasattr` is False."""


def _for_threads(text: str) -> str:
    return functools.reduce(lambda text, words: text.replace(*words), _WORDS, text)


class Face:
    """The base of everything here: an asynchronous object, and the name of its class, for errors."""

    _loop: Loop | None = None
    """The loop that renews the lease, or None before there is a lease. Calls about the lease work in this loop only."""

    def __init__(self, inner: Any, of: str) -> None:
        self._inner, self._of = inner, of

    def _call(self, call: "Call[T]") -> T:
        if self._loop is not None:
            self._loop.check()
        return call.result(self._of)

    def __repr__(self) -> str:
        return f"<aiolocks.sync.{repr(self._inner).removeprefix('<')}"

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name):
            of = self._of if name in _OF_TEXTS and hasattr(self._inner, name) else _ELSEWHERE.get(name)
            if of is not None:
                raise AsyncOnly(f"aiolocks.sync has no {name!r}: in a coroutine, use aiolocks.{of}")
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # raises the error of a property again
            raise AttributeError(_for_threads(str(missing_attribute(self, name))), name=name, obj=self)


class Named(Face):
    """The base of what has one name."""

    @property
    def name(self) -> str:
        """The name, as given."""
        return self._inner.name  # type: ignore[no-any-return]


def waits(
    method: Callable[Concatenate[Any, P], Awaitable[T]], *, certain: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """Return the method that calls *method* of the asynchronous object, and waits for the result."""

    def call(face: Any, /, *args: P.args, **keywords: P.kwargs) -> T:
        make: Callable[[], Awaitable[T]] = partial(getattr(face._inner, method.__name__), *args, **keywords)
        return face._call(Call(make, certain=certain))  # type: ignore[no-any-return]

    return _like(method, call)


def acquires(
    method: Callable[Concatenate[Any, P], Awaitable[T]], lease_of: Callable[[T, str], L]
) -> Callable[Concatenate[Any, P], L]:
    """Return the method that acquires as *method* does. *lease_of* makes of its result one for threads."""

    def call(face: Any, /, *args: P.args, **keywords: P.kwargs) -> L:
        async def acquire() -> L:
            return lease_of(await getattr(face._inner, method.__name__)(*args, **keywords), face._of)

        return Call(acquire, _release).result(face._of)

    return _like(method, call)


def holds(method: Callable[Concatenate[Any, P], object]) -> "Callable[Concatenate[Any, P], Hold]":
    """Return the method that returns a block as *method* of the asynchronous object does."""

    def call(face: Any, /, *args: P.args, **keywords: P.kwargs) -> Hold:
        return Hold(getattr(face._inner, method.__name__)(*args, **keywords), face._of)

    return _like(method, call)


def _like(method: Callable[..., object], call: Callable[P, T]) -> Callable[P, T]:
    functools.update_wrapper(call, method, ("__name__", "__qualname__"), ())
    call.__doc__ = _for_threads(method.__doc__ or "")
    return call


class Block(Face):
    """Something that `with` enters, once at a time. Its state is `_open`, the lease of the open block."""

    _open: AsyncLease | None = None

    def __enter__(self) -> "Lease":
        """Enter the block. Raises what `acquire` raises, and RuntimeError if it is open already."""
        return self._call(Call(self._enter, self._leave))

    async def _enter(self) -> "Lease":
        self._open = lease = await self._inner.__aenter__()
        if isinstance(self, Lease):
            return self
        self._loop = _loop_thread.current
        return Lease(lease, self._of)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lease. Wait for that up to 1 s, or until its end.

        Raises:
            LeaseLostError: It was lost, and the body raised no exception of its own.
        """
        if exc is not None and self._loop is not None and self._loop.error is not None:
            return  # nothing can be released, and the RuntimeError of the loop must not replace *exc*
        self._call(Call(partial(self._leave, exc=exc), certain=True))

    async def _leave(self, _: object = None, exc: BaseException | None = None) -> None:
        lease, self._open = self._open, None
        if isinstance(self, Hold):
            self._loop = None  # a `Hold` can be entered again, after a failure in another loop
        # With on_lost="flag", the asynchronous block notes a loss on the exception that leaves it, and raises nothing.
        leaving = exc if isinstance(exc, Exception) else Exception()
        await self._inner.__aexit__(type(leaving), leaving, None)
        if exc is None and lease is not None and hasattr(leaving, "__notes__"):
            raise state_of(lease).error(None if lease.lost else GONE_FROM_SERVER)


@final
class Hold(Block):
    """``with lock.hold(...)``: one acquisition and its block. It can be used again once the block is left."""


class Lease(Block):
    """The right to act until a deadline, renewed until it is released, also while its thread is busy.

    `with` blocks, `acquire()` and `try_acquire()` give it. Any thread may use or release it. ``with lease:`` releases
    it at the end. It is never copied or pickled. Once nothing refers to it, and its thread has ended, it is no longer
    renewed.
    """

    _inner: AsyncLease

    def __init__(self, inner: AsyncLease, of: str) -> None:
        super().__init__(inner, of)
        self._loop = _loop_thread.current

    @property
    def name(self) -> str:
        """The name that is held, as the caller gave it."""
        return self._inner.name

    @property
    def token(self) -> str:
        """The random token that proves who holds the name. Keep it out of logs."""
        return self._inner.token

    @property
    def fencing_token(self) -> int:
        """A number that grows with every grant of the name. Send it to the resource, which rejects smaller ones."""
        return self._inner.fencing_token

    @property
    def fencing_tokens(self) -> Mapping[str, int]:
        """The fencing token of each name. Only a `MultiLock` has several."""
        return self._inner.fencing_tokens

    @property
    def held(self) -> bool:
        """Whether the lease is certainly valid now, by the local clock. False once lost or released."""
        return self._inner.held

    @property
    def lost(self) -> bool:
        """Whether the lease ended before it was released, by the local clock."""
        return self._inner.lost

    def remaining(self) -> float:
        """Return the seconds of certain validity left, by the local clock. 0.0 once lost or released."""
        return self._inner.remaining()

    def check(self) -> None:
        """Raise LeaseLostError if the lease is lost or released. It asks only the clock: call it before every write."""
        self._inner.check()

    wait_lost = waits(AsyncLease.wait_lost)
    renew = waits(AsyncLease.renew)
    guard = waits(AsyncLease.guard)
    note = waits(AsyncLease.note)
    release = waits(AsyncLease.release, certain=True)
    hand_off = waits(AsyncLease.hand_off)
    downgrade = waits(AsyncLease.downgrade)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._inner.__reduce_ex__(protocol)


def lease_or_none(lease: AsyncLease | None, of: str) -> Lease | None:
    return None if lease is None else Lease(lease, of)


async def _release(lease: Lease | None) -> None:
    if lease is not None:
        await lease._inner.release()


class _Newest(threading.local):
    """What this thread has looked up."""

    exit: "weakref.ref[_Exit] | None" = None
    """The newest look-up of `__exit__`."""


_newest = _Newest()


@final
class _Exit:
    """A look-up of `__exit__`. `with` and exit stacks make one before they call `__enter__`, and leave by it (W20)."""

    block: "AbstractContextManager[object] | None" = None

    def __init__(self, of: object) -> None:
        """*of* is an object, or (for exit stacks) a class."""
        self.of = of

    def __call__(self, *args: Any) -> None:
        block, self.block = self.block, None
        if block is None:
            raise RuntimeError(f"{self.of!r} is not held by a block that could be left here")
        block.__exit__(*args[-3:])  # a look-up on the class gets the object first


class Exits:
    """The descriptor `__exit__` of an object that threads share: each block is left by its own look-up."""

    def __get__(self, owner: object, kind: type) -> _Exit:
        found = _Exit(kind if owner is None else owner)
        _newest.exit = weakref.ref(found)
        return found


def claim_exit(owner: object, block: AbstractContextManager[object]) -> None:
    """Let the look-up that precedes this call of *owner*'s `__enter__` leave *block*."""
    found = None if _newest.exit is None else _newest.exit()
    _newest.exit = None
    if found is None or (found.of is not owner and found.of is not type(owner)):
        raise RuntimeError(
            f"{owner!r}: other code than a `with` statement has called __enter__(). Threads share this object, so let "
            "that code keep what hold() returns, one for each block, and enter and leave that"
        )
    found.block = block
