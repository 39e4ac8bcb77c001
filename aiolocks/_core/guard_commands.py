"""The caller's own commands, checked and encoded before anything is sent.

A command that cannot run in a script together with the others is refused here, before the first of them has run.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

Word = str | bytes | int | float
Command = Sequence[Word]
Reply = bytes | str | int | list["Reply"] | None

MAX_WORDS = 4000
"""Maximum number of words in all commands of a batch, as Lua's stack holds less than 8,000."""

_REFUSED = {
    "it waits, and a script cannot": "BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN WAIT WAITAOF",
    "all commands are one transaction already": "MULTI EXEC DISCARD WATCH UNWATCH",
    "it is about a connection, and this one is not yours": (
        "ASKING AUTH CLIENT HELLO MONITOR PSUBSCRIBE PSYNC PUNSUBSCRIBE QUIT READONLY READWRITE REPLCONF RESET SELECT "
        "SSUBSCRIBE SUBSCRIBE SUNSUBSCRIBE SYNC UNSUBSCRIBE"
    ),
    "a script cannot run another": "EVAL EVALSHA EVALSHA_RO EVAL_RO FCALL FCALL_RO FUNCTION SCRIPT",
    "a script cannot run it": (
        "ACL BGREWRITEAOF BGSAVE CLUSTER CONFIG DEBUG FAILOVER MIGRATE MODULE PFSELFTEST REPLICAOF SAVE SHUTDOWN "
        "SLAVEOF SWAPDB"
    ),
}
_WHY_NOT = {name: why for why, names in _REFUSED.items() for name in names.split()}

_ALL = "DEL EXISTS MGET PFCOUNT PFMERGE SDIFF SDIFFSTORE SINTER SINTERSTORE SUNION SUNIONSTORE TOUCH UNLINK"
_FIRST_TWO = "COPY GEOSEARCHSTORE LCS LMOVE RENAME RENAMENX RPOPLPUSH SMOVE ZRANGESTORE"
_COUNTED = "LMPOP SINTERCARD ZDIFF ZINTER ZINTERCARD ZMPOP ZUNION"
_NONE = "DBSIZE ECHO FLUSHALL FLUSHDB KEYS PING PUBLISH RANDOMKEY SCAN SPUBLISH TIME"

_KEYS: dict[str, Callable[[Sequence[bytes]], Sequence[bytes]]] = {
    **dict.fromkeys(_ALL.split(), lambda words: words),
    **dict.fromkeys(["MSET", "MSETNX"], lambda words: words[::2]),
    **dict.fromkeys(_FIRST_TWO.split(), lambda words: words[:2]),
    **dict.fromkeys(_COUNTED.split(), lambda words: _counted(words)),
    **dict.fromkeys(["ZDIFFSTORE", "ZINTERSTORE", "ZUNIONSTORE"], lambda words: [words[0], *_counted(words[1:])]),
    **dict.fromkeys(["MEMORY", "OBJECT", "XGROUP", "XINFO"], lambda words: words[1:2]),
    "BITOP": lambda words: words[1:],
    **dict.fromkeys(["XREAD", "XREADGROUP"], lambda words: _streams(words)),
    **dict.fromkeys(_NONE.split(), lambda words: []),
}
"""Functions from the words to the keys, if that is not the first word. They serve to refuse keys of other slots."""


class Encoder(Protocol):
    """redis-py's encoder, as far as it is used."""

    encoding: str
    encoding_errors: str
    decode_responses: bool

    def encode(self, value: Word | memoryview) -> bytes: ...
    def decode(self, value: bytes) -> bytes | str: ...


class Batch(NamedTuple):
    """Commands to send together: for each command, the number of its words and then the words."""

    words: tuple[bytes, ...]
    keys: tuple[bytes, ...]
    names: tuple[str, ...]


def batch(commands: Sequence[Command], encoder: Encoder) -> Batch:
    """Check and encode *commands*.

    Raises:
        TypeError: A command is not a tuple of str, bytes, int and float.
        ValueError: No command or an empty one, too many words, or a command that cannot run in a script.
    """
    if not commands:
        raise ValueError('guard() needs a command, such as guard(("SET", key, value))')
    words: list[bytes] = []
    keys: dict[bytes, None] = {}
    names: list[str] = []
    for command in commands:
        name, arguments = _checked(command, encoder)
        names.append(name)
        words += [str(len(arguments)).encode(), *arguments]
        keys.update(dict.fromkeys(_KEYS[name](arguments[1:]) if name in _KEYS else arguments[1:2]))
    if len(words) > MAX_WORDS:
        raise ValueError(f"guard() takes at most {MAX_WORDS} words in all, not {len(words)}")
    return Batch(tuple(words), tuple(keys), tuple(names))


def _checked(command: Command, encoder: Encoder) -> tuple[str, list[bytes]]:
    if isinstance(command, (str, bytes)) or not isinstance(command, Sequence):
        raise TypeError(f'a command is a tuple such as ("SET", key, value), not {type(command).__name__}')
    if not command:
        raise ValueError("a command must not be empty")
    first = command[0]
    if not isinstance(first, (str, bytes)):
        raise TypeError(f"a command begins with its name, not with {type(first).__name__}")
    arguments = [*_encoded(first, encoder).split(), *(_encoded(word, encoder) for word in command[1:])]
    if not arguments or not arguments[0]:
        raise ValueError("a command must not be empty")
    name = arguments[0].decode("ascii", "replace").upper()
    why_not = _WHY_NOT.get(name)
    if name in ("XREAD", "XREADGROUP") and any(
        word.upper() == b"BLOCK" for word in arguments[: _at_streams(arguments)]
    ):
        why_not = "with BLOCK it waits, and a script cannot"
    if why_not is not None:
        raise ValueError(f"{name} cannot be guarded: {why_not}")
    return name, arguments


def _encoded(word: Word, encoder: Encoder) -> bytes:
    if isinstance(word, (bytes, bytearray, memoryview)):
        return bytes(word)
    if isinstance(word, str):
        return word.encode(encoder.encoding, encoder.encoding_errors)
    if isinstance(word, bool) or not isinstance(word, (int, float)):
        raise TypeError(f"a command's words are str, bytes, int or float, not {type(word).__name__}")
    return repr(word).encode()


def _counted(words: Sequence[bytes]) -> Sequence[bytes]:
    count = int(words[0]) if words and words[0].isdigit() else 0
    return words[1 : 1 + count]


def _at_streams(words: Sequence[bytes]) -> int:
    return next((at for at, word in enumerate(words) if word.upper() == b"STREAMS"), len(words))


def _streams(words: Sequence[bytes]) -> Sequence[bytes]:
    rest = words[_at_streams(words) + 1 :]
    return rest[: len(rest) // 2]
