"""Tokens: 11 letters of base64url that name the session, which are no secret, and 22 secret ones.

P5: 132 random bits prove ownership. P14: only the session part of a token is ever shown; see `values`.
"""

import hashlib
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from itertools import chain
from typing import Final

SESSION: Final = 11
"""Length of a session's id: 64 bits in base64url."""

OWN: Final = 22
"""Length of the secret part: 132 random bits in base64url."""

LENGTH: Final = SESSION + OWN

_BYTES = 33
"""Random bytes for the secret parts of two tokens, which are 44 letters."""

_OURS = re.compile(rb"[\w-]{%d}(?:\+|\Z)" % LENGTH, re.ASCII)


def fresh_session() -> bytes:
    while True:
        drawn = urlsafe_b64encode(os.urandom(8))[:SESSION]
        if not drawn.startswith(b"poll"):  # the name of a polling session begins so
            return drawn


def fresh_token(session: bytes = b"") -> bytes:
    """Return a token that cannot be guessed. Without *session*, it names a random one."""
    return (session or fresh_session()) + urlsafe_b64encode(os.urandom(_BYTES))[:OWN]


def tokens_of(session: bytes) -> Callable[[], bytes]:
    """Return a function that returns another token of *session* each time.

    It draws the random bytes of 128 tokens together, to save system calls. A forked process has a session of its own.
    """

    def draw() -> list[bytes]:
        drawn = urlsafe_b64encode(os.urandom(64 * _BYTES))
        return [session + drawn[at : at + OWN] for at in range(0, len(drawn), OWN)]

    return chain.from_iterable(iter(draw, [])).__next__


def session_of(token: bytes) -> bytes:
    """Return the id of the session that made *token*; empty if it is not a token of this library.

    The token of an upgrade is the token of the lease that it upgrades, a plus, and another token.
    """
    return token[:SESSION] if _OURS.match(token) else b""


def digest_of(token: bytes) -> bytes:
    """Return a digest to show instead of *token*. Of our own tokens only the secret part is hashed."""
    hashed = own_part(token) if session_of(token) else token
    # equivalent: constant, only where SHA-1 is forbidden for security
    return hashlib.sha1(hashed, usedforsecurity=False).hexdigest()[:16].encode()


def note_field(digest: bytes) -> bytes:
    """Return the field of a session's key with the note of the lease whose names are in the field *digest* (W23)."""
    return digest + b"n"


def own_part(token: bytes) -> bytes:
    return token[SESSION:]
