"""Tokens: 11 letters of base64url that name the session, which are no secret, and 22 that nobody can guess.

So whoever may read a holder's token in Redis can say which process it is of (see `who`), and may show that much of it.
"""

import hashlib
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from itertools import chain
from typing import Final

SESSION: Final = 11
"""Letters of a session's id: 64 bits."""

OWN: Final = 22
"""Letters of the rest: 132 random bits."""

LENGTH: Final = SESSION + OWN

_BYTES = 33
"""They make 44 letters: the own parts of two tokens."""


_OURS = re.compile(rb"[\w-]{%d}(?:\+|\Z)" % LENGTH, re.ASCII)


def fresh_session() -> bytes:
    """Return the id of a session."""
    while True:
        drawn = urlsafe_b64encode(os.urandom(8))[:SESSION]
        if not drawn.startswith(b"poll"):  # which begins the name of a session that polls
            return drawn


def fresh_token(session: bytes = b"") -> bytes:
    """Return a token that cannot be guessed; left out, its session is any."""
    return (session or fresh_session()) + urlsafe_b64encode(os.urandom(_BYTES))[:OWN]


def tokens_of(session: bytes) -> Callable[[], bytes]:
    """Return what returns another token of *session* each time.

    They are drawn many at a time: asking the system costs more than the rest. A fork has its own session.
    """

    def draw() -> list[bytes]:
        drawn = urlsafe_b64encode(os.urandom(64 * _BYTES))
        return [session + drawn[at : at + OWN] for at in range(0, len(drawn), OWN)]

    return chain.from_iterable(iter(draw, [])).__next__


def session_of(token: bytes) -> bytes:
    """Return the id of the session that made *token*; empty if it is none of ours.

    That of an upgrade begins with the token of the lease that it grew from, and a plus.
    """
    return token[:SESSION] if _OURS.match(token) else b""


def digest_of(token: bytes) -> bytes:
    """Return what stands for *token* where it must not be told: its secret alone counts, or all of one of others."""
    counts = own_part(token) if session_of(token) else token
    return hashlib.sha1(counts, usedforsecurity=False).hexdigest()[:16].encode()


def own_part(token: bytes) -> bytes:
    """Return the secret of *token*."""
    return token[SESSION:]
