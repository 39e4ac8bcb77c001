"""Types with `Any`: for what redis-py's, hiredis's and Python's own stubs leave untyped, and for any result of a task.

Replies have the type `replies.RawReply`.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

Coro = Coroutine[Any, Any, T]
"""A coroutine that returns a T. The other two types concern asyncio alone."""

Task = asyncio.Task[Any]
"""A task with any result."""

Future = asyncio.Future[Any]
"""A future, or a task, with any result."""

RawConnection = Any
"""A connection of redis-py, whose stream and parser are private."""


def untyped(thing: object) -> Any:
    """Return *thing*, to use a member that its stub lacks, or describes in part."""
    return thing


make_tuple: Any = untyped(tuple).__new__
"""Makes a named tuple of its class and a tuple of all its fields, in half the time that a call of the class takes."""
