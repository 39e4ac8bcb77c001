"""Which slot of a Redis Cluster a key or a sharded channel is in, and how a key gets into the slot of another.

As the Cluster specification has it: what stands in a key's first braces is hashed, or all of the key if that is
nothing, by CRC16 in the variant called XMODEM.
"""

from binascii import crc_hqx
from functools import lru_cache
from itertools import count

SLOTS = 16384


def tag_of(key: bytes) -> bytes:
    """Return what of a key is hashed: what stands between its first brace and the next closing one, or else all."""
    _, _, rest = key.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    return tag if closed and tag else key


def slot_of(key: bytes) -> int:
    return crc_hqx(tag_of(key), 0) % SLOTS


def beside(key: bytes) -> bytes:
    """Return how a key ends that is to be in the slot of *key*, which may be any; no braces may stand before that.

    It is *key* itself if that has a tag of its own; no two keys without one have the same.
    """
    if tag_of(key) != key:
        return key
    if b"}" in key:  # it cannot stand in a tag
        return b"{%d}:%b" % (_number_in(slot_of(key)), key)
    return b"{%b}" % key


@lru_cache(maxsize=256)
def _number_in(slot: int) -> int:
    """Return the least number that is hashed to *slot* by its digits: they are tried, for some milliseconds."""
    return next(number for number in count() if crc_hqx(b"%d" % number, 0) % SLOTS == slot)
