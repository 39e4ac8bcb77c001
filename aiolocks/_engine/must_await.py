"""The result of a call that must be awaited: a coroutine that raises if it is used as if it were the answer.

``if lock.try_acquire():`` and ``if not lock.locked():`` ask nothing and decide nothing, so they raise a TypeError that
shows the right call. Python still warns of the coroutine that was never awaited.
"""

import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, TypeVar, final

from .._core.background import T_co, Wrapped
from .._core.hints import mark_coroutine_function
from .._core.options import Duration, Unset
from .block import calling_frame
from .lease import Hold, Lease

P = ParamSpec("P")
T = TypeVar("T")

MYPY = False
"""mypy treats this as True. mypy reports a truth test only of a type without `__bool__`. pyright reports it only of a
type whose `__bool__` cannot return a bool."""

if TYPE_CHECKING:
    # For pyright, an `async def` in a user's Protocol returns this type and no other. It is final in typeshed, as no
    # class can be derived from it when the program runs.
    _Native = CoroutineType
else:
    _Native = Coroutine

ACQUIRE = (
    "acquire() must be awaited, or entered by `async with`: use `lease = await lock.acquire()`, or "
    "`async with lock.acquire():`"
)
TRY_ACQUIRE = (
    "try_acquire() must be awaited, and may return None: use `if lease := await lock.try_acquire():`, and then "
    "`async with lease:`"
)
LOCKED = "locked() must be awaited: use `if await lock.locked():`"


class MustAwait(Wrapped[T_co], _Native[Any, Any, T_co]):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    """A coroutine like any other, for `await`, tasks, `gather` and `wait_for`; any other use is a TypeError.

    Invariant: the inner coroutine is made at once, so that Python warns if it is never awaited.
    """

    __slots__ = ("_right",)

    def __init__(self, coroutine: Coroutine[Any, Any, T_co], right: str) -> None:
        self._coroutine = coroutine
        self._right = right

    if TYPE_CHECKING and not MYPY:

        def __bool__(self) -> NoReturn:
            raise TypeError

    if not TYPE_CHECKING:  # so that type checkers report missing attributes

        def __iter__(self):
            raise TypeError(self._right)

        __enter__ = __exit__ = __aenter__ = __aexit__ = __iter__

        def __bool__(self):
            # From Python 3.12 on, the repr of a task tests the task's coroutine for truth.
            if sys._getframe(1).f_globals.get("__name__") == "asyncio.base_tasks":
                return True
            raise TypeError(self._right)

        def __getattr__(self, name):
            if not name.startswith(("_", "cr_")) and hasattr(Lease, name):
                raise AttributeError(f"{self._right}; until then there is no {name!r}", name=name, obj=self)
            return super().__getattr__(name)


def must_await(
    right: str,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, MustAwait[T]]]:
    """Make a coroutine function return `MustAwait`, with *right* as the text of its errors."""

    def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, MustAwait[T]]:
        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> MustAwait[T]:
            return MustAwait(function(*args, **keywords), right)

        mark_coroutine_function(call)
        return call

    return decorate


class _Primitive(Protocol):
    def _acquire(self, timeout: Duration | Unset | None, permits: int) -> Coroutine[Any, Any, Lease]: ...

    def _hold(self, timeout: Duration | Unset | None, permits: int) -> Hold: ...


@final
class Acquiring(MustAwait[Lease]):  # type: ignore[misc]  # see `_Native`
    """What `acquire()` returns: ``lease = await lock.acquire(timeout=5)``, or ``async with lock.acquire(timeout=5):``.

    A coroutine like any other, for tasks, `gather` and `wait_for`; or a block, as `hold()` returns it.
    """

    __slots__ = ("_hold", "_permits", "_primitive", "_timeout")

    def __init__(self, primitive: _Primitive, timeout: Duration | Unset | None, permits: int) -> None:
        self._coroutine = primitive._acquire(timeout, permits)
        self._right = ACQUIRE
        self._primitive, self._timeout, self._permits = primitive, timeout, permits
        self._hold: Hold | None = None

    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """Begin a block; see `Hold`."""
        if self._hold is None:
            self._coroutine.close()  # it has not started
            self._hold = self._primitive._hold(self._timeout, self._permits)
        return self._hold.__aenter__()

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> "CoroutineType[Any, Any, None]":
        if self._hold is None:
            raise RuntimeError("this block was not entered")
        return self._hold.leave(exc, calling_frame())

    def __repr__(self) -> str:
        return f"<Acquiring of {self._primitive!r}>"
