"""A coroutine around another one: for `await`, tasks, `gather`, `wait_for` and debuggers it is the one inside."""

from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Wrapped(Coroutine[Any, Any, T_co]):
    """What every coroutine around another one does; a subclass adds what is different."""

    __slots__ = ("__weakref__", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, T_co]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *exception: Any) -> Any:
        return self._coroutine.throw(*exception)

    def close(self) -> None:
        self._coroutine.close()

    if not TYPE_CHECKING:  # type checkers report what is missing

        def __getattr__(self, name):
            if name.startswith("cr_") or name in ("__name__", "__qualname__"):
                return getattr(self._coroutine, name)  # for tools that show tasks and their stacks
            return object.__getattribute__(self, name)
