"""Checks that a reply has a shape that Redis can send. Any other is refused on arrival, and never shown.

The port may belong to another program, or there may be a proxy in between. A wrong reply is treated like a lost one:
the request may have been run, the connection is closed, and the caller gets redis-py's ConnectionError.
"""

import re
from collections.abc import Sized
from typing import Any, TypeGuard, cast, final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse

RawReply = Any
"""A reply: bytes, a number, None or a list of these, or an exception. Code that reads it raises one of `UNREADABLE`."""

UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Errors raised by code that reads a reply of an unexpected shape."""

MAX_FENCE = 2**53
"""Fencing tokens are smaller: scripts calculate with floats."""

_MAX_NUMBER = 2**63
"""Numbers of Redis are smaller. RESP3 has longer ones too, of which Python cannot make a float."""


@final
class UnreadableReplyError(RedisConnectionError):
    """Redis never sends such a reply."""


def unreadable(what: str, reply: object) -> UnreadableReplyError:
    """Return the error for a *reply* that Redis never sends to the request *what*."""
    # P14: a reply may repeat a token, so it is not shown.
    return UnreadableReplyError(
        f"Redis answered {what} with {_described(reply)}, which it never does; does this address lead to a Redis?"
    )


def unreadable_protocol(error: Exception) -> UnreadableReplyError:
    """Return the error for a reply on which the parser failed with *error*."""
    detail = f": {error}" if isinstance(error, InvalidResponse) else ""  # texts of other errors may quote the reply
    return UnreadableReplyError(f"Redis answered with something that is not its protocol{detail}")


def _described(reply: object) -> str:
    match reply:
        case None:
            return "nothing (nil)"
        case bool():
            return "true or false"
        case int():
            return f"the number {reply}"
        case float():
            return "a number with a fraction"
        case bytes() | str():
            return f"a text of {len(reply)} bytes"
        case list() | dict():
            return f"a {'list' if isinstance(reply, list) else 'map'} of {len(cast('Sized', reply))}"
        case _:
            return f"a {type(reply).__name__}"


_SHAPES = {
    **dict.fromkeys(("adopt", "fence", "rename", "touch", "redlock/raise", "DEL", "EXISTS", "WAIT"), r"n"),
    **dict.fromkeys(("pause", "resize"), r"\[n.*\]"),
    "downgrade": r"\[[nR].*\]",
    "expire": r"[n-]",
    "guard": r"[nb]",
    "hand_off": r"[nR]",
    "holders": r"\[n(?:[bd][nd][nd][nd])*\]",
    "read": r"\[[bd-][bd]\]",
    "revoke": r"\[\[n[bd](?:nnn)*\].*\]",
    "statistics": r"\[n{8}\]",
    "waiters": r"\[nn[nd](?:[bd][bd][nd])*\]",
    "write": r"\[n[bd]\]",
    "redlock/revoke": r"\[[bd]nn\]",
    "modes/statistics": r"\[n{8}\[n{6}\]\]",
    "redlock/statistics": r"\[nnn\]",
    "semaphore/statistics": r"\[n{9}\]",
    "GET": r"[bd-]",
    "HMGET": r"\[[bd-]*\]",
    **dict.fromkeys(("PUBSUB NUMSUB", "PUBSUB SHARDNUMSUB"), r"\[[bd]n\]"),
    "ROLE": r"\[bn\[.*\]\]|\[b[bd]nbn\]",
}
"""Shape of each reply, by script, verb or command: n for an integer, d for digits, b for other bytes, - for nil.
Where a shape has R, that is for bytes which begin with R: why a lease was revoked."""


def check_reply(name: str, reply: object) -> None:
    """Raise ValueError if *reply* does not have a shape that the script or command *name* returns."""
    shape = _SHAPES.get(name) or _SHAPES.get(name.rpartition("/")[2], ".*")
    if not re.fullmatch(shape, _shape_of(reply, reasons="R" in shape)):
        raise ValueError


def is_list(reply: object) -> TypeGuard[list[RawReply]]:
    """Whether *reply* is a list; a parser may also return a tuple."""
    return isinstance(reply, (list, tuple))  # to pyright, its elements would be of an unknown type


def _shape_of(reply: RawReply, *, reasons: bool) -> str:
    if type(reply) is int:  # a bool does not count as one
        return "n" if -_MAX_NUMBER <= reply < _MAX_NUMBER else "?"
    if isinstance(reply, bytes):
        if reasons and reply.startswith(b"R"):
            return "R"
        return "d" if reply.removeprefix(b"-").isdigit() and len(reply) < 20 else "b"
    if is_list(reply):
        return f"[{''.join(_shape_of(each, reasons=reasons) for each in reply)}]"
    return "-" if reply is None else "?"


def check_numbers(*numbers: RawReply) -> None:
    if {*map(type, numbers)} - {int}:
        raise ValueError
    if numbers and not -_MAX_NUMBER <= min(numbers) <= max(numbers) < _MAX_NUMBER:
        raise ValueError


Grant = tuple[bytes, int, int]
"""A token, its fencing token, and the ms of its lease. A notice has a negative number in place of the fencing token."""


def grants_in(grants: RawReply) -> list[Grant]:
    """Return the grants in a reply: *grants* is one flat list, or a number if there are none.

    Raises:
        ValueError, TypeError: No script of this library returns such a reply.
    """
    found: list[Grant] = []
    if type(grants) is int:
        return found
    if not is_list(grants):
        raise TypeError
    fields = iter(grants)
    for token in fields:
        numbers: tuple[RawReply, RawReply] = (next(fields, None), next(fields, None))
        if type(token) is not bytes or {*map(type, numbers)} - {int, bytes}:
            raise TypeError
        fence, amount = map(int, numbers)
        check_numbers(fence, amount)
        found.append((token, fence, amount))
    return found
