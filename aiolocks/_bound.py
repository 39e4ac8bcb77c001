"""A script bound to the keys of one name, packed once for all tokens.

Every acquisition sends the same bytes around a fresh token, and packing them anew costs more than all else that is
sent. So they are packed once around a stand-in, and split there.
"""

import os
from collections.abc import Callable
from typing import Any, Protocol, cast, final

import hiredis

from ._scripts import Script

Arguments = tuple[bytes | int, ...]

_STAND_IN = os.urandom(16).hex().encode()
"""As long as a token, and in no name or other argument."""

_LENGTH = len(_STAND_IN)
"""Each length stands in front of what has it, so that a template is good for no other."""

_MOST = 8
"""Templates kept: one for each set of terms; all but a few are the same for good."""

pack: Callable[[tuple[str | bytes | int, ...]], bytes] = cast("Any", hiredis).pack_command
"""Its stub knows commands of one element only."""


class Command(Protocol):
    """What can be sent."""

    @property
    def name(self) -> str:
        """By which a connection remembers that it has brought it along."""
        ...

    def by_digest(self, args: Arguments) -> bytes:
        """Return it for a server that has it."""
        ...

    def whole(self, args: Arguments) -> bytes:
        """Return it for any server."""
        ...


@final
class Bound:
    """What to send for a script; *keys* go with its arguments, of which *per_token* says that the first is a token."""

    __slots__ = ("_keys", "_per_token", "_script", "_templates", "name")

    def __init__(self, script: Script, keys: Callable[[Arguments], tuple[bytes, ...]], *, per_token: bool) -> None:
        self._script = script
        self.name = script.name
        self._keys = keys
        self._per_token = per_token
        self._templates: dict[Arguments, tuple[bytes, ...]] = {}

    def by_digest(self, args: Arguments) -> bytes:
        """Return the command for a server that has the script."""
        if self._per_token:
            token, terms = args[0], args[1:]
            if isinstance(token, bytes) and len(token) == _LENGTH:  # somebody may tell us of any token
                return token.join(self._templates.get(terms) or self._template(terms))
        return self._packed("EVALSHA", self._script.sha, args)

    def whole(self, args: Arguments) -> bytes:
        """Return the command that brings the script along."""
        return self._packed("EVAL", self._script.source, args)

    def _template(self, terms: Arguments) -> tuple[bytes, ...]:
        if len(self._templates) >= _MOST:
            self._templates.clear()
        template = tuple(self._packed("EVALSHA", self._script.sha, (_STAND_IN, *terms)).split(_STAND_IN))
        self._templates[terms] = template
        return template

    def _packed(self, command: str, script: bytes, args: Arguments) -> bytes:
        keys = self._keys(args)
        return pack((command, script, len(keys), *keys, *args))
