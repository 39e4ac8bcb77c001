"""What a call returns that must be awaited: a coroutine that cannot be taken for its own answer.

``if lock.try_acquire():`` and ``if not lock.locked():`` ask nothing and decide nothing, so they raise a TypeError that
shows the right call. Python still warns of the coroutine that was never awaited.
"""

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, TypeVar, final

from .._core.options import Duration, Unset
from .._core.teaching import mark_coroutine_function
from .block import calling_frame
from .lease import Hold, Lease

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)  # equivalent: constant, for type checkers

MYPY = False
"""mypy takes it for True. It reports a truth test only of a type without `__bool__`; pyright, of one that cannot return
a bool."""

ACQUIRE = (
    "acquire() must be awaited, or entered by `async with`: use `lease = await lock.acquire()`, or "
    "`async with lock.acquire():`"
)
TRY_ACQUIRE = (
    "try_acquire() must be awaited, and may return None: use `if lease := await lock.try_acquire():`, and then "
    "`async with lease:`"
)
LOCKED = "locked() must be awaited: use `if await lock.locked():`"


class MustAwait(Coroutine[Any, Any, T_co]):
    """A coroutine like any other, for `await`, tasks, `gather` and `wait_for`; any other use is a TypeError.

    Invariant: the coroutine in it is made at once, so that Python warns if it is never awaited.
    """

    __slots__ = ("__weakref__", "_coroutine", "_right")

    def __init__(self, coroutine: Coroutine[Any, Any, T_co], right: str) -> None:
        self._coroutine = coroutine
        self._right = right

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *exception: Any) -> Any:
        return self._coroutine.throw(*exception)

    def close(self) -> None:
        self._coroutine.close()

    if not MYPY:

        def __bool__(self) -> NoReturn:
            raise TypeError(self._right)

    if not TYPE_CHECKING:  # type checkers report what is missing

        def __iter__(self):
            raise TypeError(self._right)

        __enter__ = __exit__ = __aenter__ = __aexit__ = __iter__

        def __getattr__(self, name):
            if name.startswith("cr_") or name in ("__name__", "__qualname__"):
                return getattr(self._coroutine, name)  # for tools that show tasks and their stacks
            if not name.startswith("_") and hasattr(Lease, name):
                raise AttributeError(f"{self._right}; until then there is no {name!r}", name=name, obj=self)
            return object.__getattribute__(self, name)


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
class Acquiring(MustAwait[Lease]):
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
            self._coroutine.close()  # it was not begun
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
