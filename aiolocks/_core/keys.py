"""How a name becomes Redis keys: those of one name share a Cluster slot, and no two names share a key.

A key is ``<prefix><kind>:{<name>}``, followed by ``:<part>`` for what belongs to it. The braces make Redis Cluster
hash the name alone. Braces inside a name are escaped, since ``{}`` or a leading ``}`` would end the tag early.
"""

from dataclasses import dataclass
from functools import cached_property

LONGEST_NAME = 1024
"""Bytes of UTF-8."""

_WORDS = {"rlock": "reentrant", "rwlock": "readwrite", "multilock": "multi", "redlock": "quorum"}
"""What keys have instead of a kind that ends with another kind: else prefix "r" and kind "lock" would be kind
"rlock"."""

_ESCAPES = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})

_PART_ESCAPES = _ESCAPES | {ord(":"): "%3A"}
"""After the braces a colon begins a part, so a colon in the path is escaped."""


@dataclass(frozen=True)
class Keys:
    """The keys of one name of one kind of primitive, and the channels on which its waiters are told.

    Attributes:
        family: Whose scripts use these keys, where kinds share scripts; left out: the kind's own.
        path: The name is a path; all paths with one root go into one Cluster slot.
    """

    prefix: str
    kind: str
    name: str
    family: str = ""
    path: bool = False

    def __post_init__(self) -> None:
        check_prefix(self.prefix)
        check_name(self.name)

    @cached_property
    def base(self) -> bytes:
        """The key of the holder; every other key of the name begins with it."""
        root, slash, rest = self.name.partition("/") if self.path else (self.name, "", "")
        tag, path = root.translate(_ESCAPES), rest.translate(_PART_ESCAPES)
        return f"{self.prefix}{_WORDS.get(self.kind, self.kind)}:{{{tag}}}{slash}{path}".encode()

    @cached_property
    def channels(self) -> bytes:
        """The start of every wake-up channel; the waiting session's id follows."""
        return f"{self.prefix}wake:".encode()

    def part(self, part: bytes) -> bytes:
        return self.base + b":" + part


def check_name(name: str) -> None:
    """Raise TypeError or ValueError unless *name* is a str of 1 to 1,024 bytes of UTF-8."""
    given: object = name
    if not isinstance(given, str):
        several = ": a MultiLock takes several names" if isinstance(given, (list, tuple, set, frozenset)) else ""
        raise TypeError(f"name must be a str, not {type(given).__name__}{several}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError("name holds a lone surrogate, which UTF-8 cannot encode") from None
    if not 1 <= size <= LONGEST_NAME:
        raise ValueError(f"name must be 1 to {LONGEST_NAME} bytes of UTF-8, not {size}")


def check_prefix(prefix: str) -> None:
    """Raise TypeError or ValueError unless *prefix* is a str without braces."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, not {type(prefix).__name__}")
    if "{" in prefix or "}" in prefix:
        raise ValueError(f"prefix must not contain braces, which mark the Cluster slot: {prefix!r}")
    try:
        prefix.encode()
    except UnicodeEncodeError:
        raise ValueError("prefix holds a lone surrogate, which UTF-8 cannot encode") from None
