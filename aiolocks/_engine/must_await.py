"""The result of a call that must be awaited: a coroutine that raises a TypeError if it is used in any other way.

``if lock.try_acquire():`` and ``if not lock.locked():`` would be true without asking Redis, so the TypeError shows the
right call. Python also warns that the coroutine was never awaited.
"""

import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, TypeVarTuple, final

from .._core.background import T_co, Wrapped
from .._core.hints import mark_coroutine_function
from .._core.untyped import Coro
from .block import frame_left
from .lease import Hold, Lease

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MYPY = False
"""mypy treats this as True. It reports a truth test of a type without `__bool__`; pyright reports one of a type whose
`__bool__` never returns."""

if TYPE_CHECKING:
    # For pyright, an `async def` in a user's Protocol returns exactly this type. typeshed marks it as final.
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
    """A coroutine for `await`, tasks, `gather` and `wait_for`. Any other use is a TypeError.

    Invariant: the inner coroutine is made at once, so Python warns if it is never awaited.
    """

    __slots__ = ("_right",)

    def __init__(self, coroutine: Coro[T_co], right: str) -> None:
        """*right* is the text of the errors, which shows the right call."""
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


def must_await(right: str) -> Callable[[Callable[P, Coro[T]]], Callable[P, MustAwait[T]]]:
    """Make a coroutine function return `MustAwait`, with *right* as the text of its errors."""

    def decorate(function: Callable[P, Coro[T]]) -> Callable[P, MustAwait[T]]:
        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> MustAwait[T]:
            return MustAwait(function(*args, **keywords), right)

        mark_coroutine_function(call)
        return call

    return decorate


@final
class Acquiring(MustAwait[Lease]):  # type: ignore[misc]  # see `_Native`
    """The result of `acquire()`: a coroutine, as in ``lease = await lock.acquire()``, or a block like `hold()`.

    Its state is `_hold`, which is made when it is first entered. Invariant: the coroutine is closed by then.
    """

    __slots__ = ("_hold", "_make_hold", "_of", "_terms")

    def __init__(
        self, of: object, acquire: Callable[[*Ts], Coro[Lease]], make_hold: Callable[[*Ts], Hold],
        *terms: *Ts,
    ) -> None:  # fmt: skip
        """*acquire* returns the coroutine, and *make_hold* the block, both on these *terms*."""
        self._coroutine = acquire(*terms)
        self._right = ACQUIRE
        self._make_hold, self._of, self._terms = make_hold, of, terms
        self._hold: Hold | None = None

    def __aenter__(self) -> "CoroutineType[Any, Any, Lease]":
        """Enter a block; see `Hold`."""
        if self._hold is None:
            self._coroutine.close()  # it has not started
            self._hold = self._make_hold(*self._terms)
        return self._hold.__aenter__()

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> "CoroutineType[Any, Any, None]":
        if self._hold is None:
            raise RuntimeError("this block was not entered")
        return self._hold.leave(exc, frame_left(exc))

    def __repr__(self) -> str:
        return f"<Acquiring of {self._of!r}>"
