"""Adds a note to redis-py's errors that says what the caller was doing; our own errors have it in their text."""

import copy
from types import TracebackType
from typing import final

from redis.exceptions import LockError, RedisClusterException, RedisError

_TROUBLE = (RedisError, RedisClusterException, OSError)

_WHILE = "while "


def noted(error: BaseException, doing: str) -> BaseException:
    """Return *error* with a note such as "while acquiring lock 'orders:42'".

    All callers on one connection get the same error: the first gets it with a note, each other a copy with its own.
    """
    if not isinstance(error, _TROUBLE) or isinstance(error, LockError):
        return error
    note = _WHILE + doing
    notes: list[str] = getattr(error, "__notes__", [])
    if note in notes:
        return error
    if any(other.startswith(_WHILE) for other in notes):
        cause, error = error.__cause__, copy.copy(error)
        error.__cause__, error.__notes__ = cause, []
    error.add_note(note)
    return error


@final
class Doing:
    """A block that adds such a note to each error of redis-py that leaves it."""

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or (another := noted(error, self._doing)) is error:
            return
        try:
            raise another from error.__cause__
        finally:
            del another  # its traceback refers to this frame
