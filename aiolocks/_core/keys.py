"""How a name becomes Redis keys: the keys of one name share a Cluster slot, and no two names share a key.

A key is ``<prefix><kind>:{<name>}``, followed by ``:<part>`` for what belongs to it. The braces make Redis Cluster
hash the name alone. Braces inside a name are escaped, since ``{}`` or a leading ``}`` would end the tag early.

A Cluster finds the slot of a key by CRC16 (its XMODEM variant) of the text in the first braces, or of the whole key.
"""

from binascii import crc_hqx
from functools import lru_cache
from itertools import count
from typing import final

from .kinds import KINDS

MAX_NAME_BYTES = 1024
"""Maximum length of a name in UTF-8."""

SLOTS = 16384
"""Number of slots of a Cluster."""

PREFIX = "aiolocks:"
_EXACT = b"aiolocks:exact:"
_TAGGED = b"t:"
"""Comes before a name that has a tag of its own."""

_KINDS = {kind.name: (kind.key_word, kind.family) for kind in KINDS}

_ESCAPES = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})

_PART_ESCAPES = _ESCAPES | {ord(":"): "%3A"}
"""After the braces a colon begins a part, so a colon in the path is escaped."""


@final
class Keys:
    """The keys of one name of one kind of primitive, and the channels that wake its waiters.

    Attributes:
        family: The kind whose scripts use these keys.
        base: Every key of the name begins with it.
        holder_key: The key of the holder: the base, except for `exact`.
        channels: The start of every wake-up channel; see `channel_of`.
        holder: The `holder=` label of the manager that made these keys, or None.
    """

    __slots__ = ("base", "channels", "family", "holder", "holder_key", "kind", "name")

    def __init__(self, prefix: str, kind: str, name: str, family: str = "", *, path: bool = False) -> None:
        """Make the keys of *name*; with *path*, all paths with the same root go into one Cluster slot."""
        try:
            head, self.channels, of_kind = _of_prefix(prefix, kind)
        except TypeError:
            check_prefix(prefix)  # of a type that cannot be hashed
            raise
        self.kind = kind
        self.family = family or of_kind
        self.holder: str | None = None
        if type(name) is not str or not name.isascii() or not 0 < len(name) <= MAX_NAME_BYTES:  # the common case
            name = check_name(name).decode()  # a plain str, because an f-string formats a `(str, Enum)` as Names.ORDERS
        self.name = name
        if path or "{" in name or "}" in name or "%" in name:
            root, slash, rest = name.partition("/") if path else (name, "", "")
            self.base = f"{head}{root.translate(_ESCAPES)}}}{slash}{rest.translate(_PART_ESCAPES)}".encode()
        else:
            self.base = f"{head}{name}}}".encode()
        self.holder_key = self.base

    @classmethod
    def exact(cls, name: bytes, shown: str) -> "Keys":
        """Return the keys of a lock whose holder is the key *name* itself, for `compat`.

        All its other keys begin with `base`, and share the slot of *name*.
        """
        keys = cls(PREFIX, "exact", "-")
        keys.name = shown
        keys.base = _EXACT + (_TAGGED if tag_of(name) != name else b"") + beside(name)
        keys.holder_key = name
        return keys

    def part(self, part: bytes) -> bytes:
        return self.base + b":" + part


def of_shard(channel: bytes) -> bool:
    """Whether *channel*, or the start of a channel, is sharded: each is in the slot of its name."""
    return b"{" in channel


def channel_of(base: bytes, channels: bytes, session: bytes) -> bytes:
    """Return the channel on which *session* hears of grants of the name of *base*; `queue.lua` does the same.

    If *channels* ends with an open brace, which no prefix does, the channel is sharded, in the slot of its name.
    Otherwise a session has one channel for all names.
    """
    if not of_shard(channels):
        return channels + session
    tag = base.partition(b"{")[2].partition(b"}")[0]
    return b"%b%b}:%b" % (channels, tag, session)


def session_key(channels: bytes, session: bytes) -> bytes:
    """Return the key in which *session* publishes its process, under the prefix of these *channels*."""
    return channels.removesuffix(b"wake:") + b"session:" + session


@lru_cache(maxsize=256)
def _of_prefix(prefix: str, kind: str) -> tuple[str, bytes, str]:
    """Check *prefix*; return the first part of the kind's keys, the first part of its channels, and its family."""
    prefix = check_prefix(prefix)
    word, family = _KINDS.get(kind, (kind, kind))
    return f"{prefix}{word}:{{", f"{prefix}wake:".encode(), family


def check_name(name: str) -> bytes:
    """Return *name* in UTF-8; raise TypeError or ValueError unless it is a str of 1 to 1,024 bytes in UTF-8."""
    given: object = name
    if not isinstance(given, str):
        several = ": a MultiLock takes several names" if isinstance(given, (list, tuple, set, frozenset)) else ""
        raise TypeError(f"name must be a str, not {type(given).__name__}{several}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise ValueError("name holds a lone surrogate, which UTF-8 cannot encode") from None
    if not 1 <= len(encoded) <= MAX_NAME_BYTES:
        raise ValueError(f"name must be 1 to {MAX_NAME_BYTES} bytes of UTF-8, not {len(encoded)}")
    return encoded


def check_prefix(prefix: str) -> str:
    """Return *prefix* as a plain str; raise TypeError or ValueError unless it is a str without braces."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, not {type(prefix).__name__}")
    if "{" in prefix or "}" in prefix:
        raise ValueError(f"prefix must not contain braces, which mark the Cluster slot: {prefix!r}")
    try:
        return prefix.encode().decode()
    except UnicodeEncodeError:
        raise ValueError("prefix holds a lone surrogate, which UTF-8 cannot encode") from None


def tag_of(key: bytes) -> bytes:
    """Return the part of *key* that is hashed: the text between its first brace and the next closing one, or all."""
    _, _, rest = key.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    return tag if closed and tag else key


def slot_of(key: bytes) -> int:
    return crc_hqx(tag_of(key), 0) % SLOTS


def beside(key: bytes) -> bytes:
    """Return a suffix that puts a key into the same Cluster slot as *key*.

    It follows a text without braces. It is *key* itself if *key* has a tag; no two keys without tags have the same.
    """
    if tag_of(key) != key:
        return key
    if b"}" in key:  # it cannot be part of a tag
        return b"{%d}:%b" % (_number_in(slot_of(key)), key)
    return b"{%b}" % key


@lru_cache(maxsize=256)
def _number_in(slot: int) -> int:
    """Return the smallest number whose digits are hashed to *slot*; finding it takes some milliseconds."""
    return next(number for number in count() if crc_hqx(b"%d" % number, 0) % SLOTS == slot)
