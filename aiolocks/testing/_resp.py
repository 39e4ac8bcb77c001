"""Finds the ends of RESP messages, and the request that each reply answers. Nothing here does I/O.

Redis's protocol, versions 2 and 3: https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from collections import deque
from dataclasses import dataclass
from typing import final

_SUBSCRIBING = frozenset({b"subscribe", b"psubscribe", b"ssubscribe", b"unsubscribe", b"punsubscribe", b"sunsubscribe"})
_MESSAGES = frozenset({b"message", b"pmessage", b"smessage"})
_REPLICATING = frozenset({b"sync", b"psync"})


@final
class Scanner:
    """Split one direction of a connection into whole messages, however its bytes arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0  # the end of the elements that were read of the current message
        self._missing = 1  # elements of that message that have yet to come; nesting does not matter
        self._raw = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the messages that *chunk* completes."""
        self._buffer += chunk
        messages: list[bytes] = []
        while self._buffer and (self._raw or self._pass_element()):
            if self._raw or self._missing <= 0:
                messages.append(self._cut())
        return messages

    def stop_parsing(self) -> None:
        """From now on return everything as it comes: a replication stream has no messages."""
        self._raw = True
        self._at = 0

    def _cut(self) -> bytes:
        end = len(self._buffer) if self._raw else self._at
        message = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._at, self._missing = 0, 1
        return message

    def _pass_element(self) -> bool:
        """Step over one scalar or one header of an aggregate. Return False if it is incomplete."""
        line_end = self._buffer.find(b"\r\n", self._at)
        if line_end < 0:
            return False
        kind = bytes(self._buffer[self._at : self._at + 1])
        try:
            size = int(self._buffer[self._at + 1 : line_end])
        except ValueError:
            kind, size = b"", 0  # a status, an error or an inline command ends with its line
        end = line_end + 2
        if kind in (b"$", b"=", b"!"):
            end += size + 2 if size >= 0 else 0
            if len(self._buffer) < end:
                return False
        elif kind in (b"*", b"~", b">"):
            self._missing += max(size, 0)
        elif kind == b"%":
            self._missing += 2 * size
        elif kind == b"|":
            self._missing += 2 * size + 1  # attributes come before their element
        self._at = end
        self._missing -= 1
        return True


@dataclass(slots=True)
class _Asked:
    request: bytes
    missing: int = 1  # replies that have yet to come: SUBSCRIBE has one per channel
    subscribing: bool = False


@final
class Pairing:
    """Finds the request of each reply. Redis replies in order, but pushes messages in between."""

    def __init__(self) -> None:
        self._asked: deque[_Asked] = deque()
        self._subscriber = False

    def ask(self, request: bytes) -> None:
        """Add a request that is sent now."""
        subscribing = verb(request) in _SUBSCRIBING
        self._subscriber = self._subscriber or subscribing
        channels = int(request[1 : request.index(b"\r\n")]) - 1 if subscribing else 0
        self._asked.append(_Asked(request, max(channels, 1), subscribing))

    def answer(self, reply: bytes) -> bytes | None:
        """Return the request of *reply*, or None if it is a push message."""
        word = verb(reply)
        # RESP 2 has no type for pushes, but no other reply on a subscriber's connection begins with these words.
        pushed = reply[:1] == b">" or (self._subscriber and word in _SUBSCRIBING | _MESSAGES)
        if not self._asked:
            return None
        asked = self._asked[0]
        if pushed and not (asked.subscribing and word in _SUBSCRIBING):
            return None
        asked.missing -= 1 if pushed else asked.missing
        if asked.missing <= 0:
            self._asked.popleft()
        return asked.request


def starts_replication(request: bytes) -> bool:
    """Return True if a replica asks for the replication stream, which is not RESP."""
    return verb(request) in _REPLICATING


def verb(message: bytes) -> bytes:
    """Return the first bulk string of an array in lower case: a request's verb, or a push message's kind."""
    parts = message.split(b"\r\n", 3)
    return parts[2].lower() if message[:1] in (b"*", b">") and len(parts) > 3 else b""
