"""The one place where `Any` stands for what redis-py's, hiredis's and Python's own stubs leave untyped.

For replies it is `replies.RawReply`.
"""

from typing import Any

RawConnection = Any
"""A connection of redis-py, whose stream and parser are private."""


def untyped(thing: object) -> Any:
    """Return *thing*, to use a member that its stub lacks, or describes in part."""
    return thing


make_tuple: Any = untyped(tuple).__new__
"""Makes a named tuple of its class and a tuple of all its fields, in half the time that a call of the class takes."""
