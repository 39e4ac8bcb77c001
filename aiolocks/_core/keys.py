"""How a name becomes Redis keys: those of one name share a Cluster slot, and no two names share a key.

A key is ``<prefix><kind>:{<name>}``, followed by ``:<part>`` for what belongs to it. The braces make Redis Cluster
hash the name alone. Braces inside a name are escaped, since ``{}`` or a leading ``}`` would end the tag early.
"""

from functools import lru_cache
from typing import final

from .kinds import KINDS
from .slots import beside, tag_of

LONGEST_NAME = 1024
"""Bytes of UTF-8."""

_WORDS = {kind.name: kind.key_word for kind in KINDS}

_ESCAPES = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})

_PART_ESCAPES = _ESCAPES | {ord(":"): "%3A"}
"""After the braces a colon begins a part, so a colon in the path is escaped."""


@final
class Keys:
    """The keys of one name of one kind of primitive, and the channels on which its waiters are told.

    Attributes:
        family: Whose scripts use these keys, where kinds share scripts; left out: the kind's own.
        base: The key of the holder; every other key of the name begins with it.
        channels: The start of every wake-up channel; see `channel_of`.
    """

    __slots__ = ("_holder", "base", "channels", "family", "kind", "name")

    def __init__(self, prefix: str, kind: str, name: str, family: str = "", *, path: bool = False) -> None:
        """*path*: The name is a path; all paths with one root go into one Cluster slot."""
        try:
            head, self.channels = _of_prefix(prefix, kind)
        except TypeError:
            check_prefix(prefix)  # of a type that cannot even be looked up
            raise
        self.kind = kind
        self.name = name
        self.family = family or kind
        if type(name) is not str or not name.isascii() or not 0 < len(name) <= LONGEST_NAME:  # else it is a good one
            check_name(name)
        if path or "{" in name or "}" in name or "%" in name:
            root, slash, rest = name.partition("/") if path else (name, "", "")
            self.base = f"{head}{root.translate(_ESCAPES)}}}{slash}{rest.translate(_PART_ESCAPES)}".encode()
        else:
            self.base = f"{head}{name}}}".encode()

    @classmethod
    def exact(cls, name: bytes, shown: str) -> "Keys":
        """Return those of a lock whose holder is the key *name* itself, for `compat`; `holder_of` finds that again.

        All others stand beside it in its slot, under `base`.
        """
        keys = cls(PREFIX, "exact", "-", "exact")
        keys.name = shown
        keys.base = _EXACT + (_TAGGED if tag_of(name) != name else b"") + beside(name)
        return keys

    @property
    def holder(self) -> str | None:
        """What those who hold the name by these are called; what is not set costs nothing."""
        return getattr(self, "_holder", None)

    @holder.setter
    def holder(self, holder: str) -> None:
        self._holder = holder

    def part(self, part: bytes) -> bytes:
        return self.base + b":" + part


PREFIX = "aiolocks:"
_EXACT = b"aiolocks:exact:"
_TAGGED = b"t:"
"""Before a name that has a tag of its own."""


def holder_of(base: bytes) -> bytes:
    """Return the key of the holder by what stands beside it; see `Keys.exact`."""
    name = base.removeprefix(_EXACT)
    if name.startswith(_TAGGED):
        return name.removeprefix(_TAGGED)
    tag, _, behind = name.removeprefix(b"{").partition(b"}")
    return behind.removeprefix(b":") if behind else tag


def of_shard(channel: bytes) -> bool:
    """Whether *channel*, or what channels begin with, is of a Cluster's shards."""
    return b"{" in channel


def channel_of(base: bytes, channels: bytes, session: bytes) -> bytes:
    """Return the channel on which *session* is told of turns at the name of *base*; `queue.lua` has the same.

    If *channels* ends with an open brace, as no prefix does, these are channels of a Cluster's shards: each is in the
    slot of its name. Otherwise a session has one for all names.
    """
    if not of_shard(channels):
        return channels + session
    tag = base.partition(b"{")[2].partition(b"}")[0]
    return b"%b%b}:%b" % (channels, tag, session)


def session_key(channels: bytes, session: bytes) -> bytes:
    """Return the key that says which process *session* is of, under the prefix of these *channels*."""
    return channels.removesuffix(b"wake:") + b"session:" + session


@lru_cache(maxsize=256)
def _of_prefix(prefix: str, kind: str) -> tuple[str, bytes]:
    """Check a prefix, and return with what the keys of a kind begin, and the start of the channels."""
    check_prefix(prefix)
    return f"{prefix}{_WORDS.get(kind, kind)}:{{", f"{prefix}wake:".encode()


def check_name(name: str) -> bytes:
    """Return *name* in UTF-8, or raise TypeError or ValueError unless it is a str of 1 to 1,024 bytes of that."""
    given: object = name
    if not isinstance(given, str):
        several = ": a MultiLock takes several names" if isinstance(given, (list, tuple, set, frozenset)) else ""
        raise TypeError(f"name must be a str, not {type(given).__name__}{several}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise ValueError("name holds a lone surrogate, which UTF-8 cannot encode") from None
    if not 1 <= len(encoded) <= LONGEST_NAME:
        raise ValueError(f"name must be 1 to {LONGEST_NAME} bytes of UTF-8, not {len(encoded)}")
    return encoded


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
