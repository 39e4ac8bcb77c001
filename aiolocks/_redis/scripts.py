"""The Lua scripts, read from `lua/*/*.lua`: each file's header is its contract.

The header names every key and argument, and those names are declared as Lua locals in front of the script, so the
names that callers pass, the comments and the code cannot drift apart. `uses` puts shared files in its place: their
definitions are made anew in each run, so they come after all code that does not need them.

Every acquisition sends the same bytes around a fresh token, and packing them anew costs more than all else in sending.
So the command for the keys of one name is packed once around a stand-in for the token, and split there.
"""

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast, final

import hiredis

_FOLDER = Path(__file__).with_name("lua")
_FIELD = re.compile(r"^-- (KEYS|ARGV)\[(\d+)(…?)\]\s+(\w+)", re.MULTILINE)
_USES = re.compile(r"^ *-- uses\s+(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One script: what to send, and under which names its keys and arguments are passed."""

    name: str
    source: bytes
    sha: bytes
    keys: tuple[str, ...]
    args: tuple[str, ...]


@cache
def load(name: str) -> Script:
    """Return the script of *name*, such as ``lock/grant``; read once per process."""
    text = _read(name)
    fields: dict[str, list[str]] = {"KEYS": [], "ARGV": []}
    rest = ""
    for kind, position, more, field in _FIELD.findall(text):
        fields[kind].append(field)
        if int(position) != len(fields[kind]):
            raise ValueError(f"{name}.lua: {kind}[{position}] is out of order in the header")
        if more:
            rest += f"local {field} = {{unpack({kind}, {position})}}\n"
    prelude = "".join(
        f"local {', '.join(names)} = unpack({kind}, 1, {len(names)})\n" for kind, names in fields.items() if names
    )
    source = (prelude + rest + _strip(_with_shared(text))).encode()
    sha = hashlib.sha1(source).hexdigest().encode()
    return Script(name, source, sha, tuple(fields["KEYS"]), tuple(fields["ARGV"]))


def _with_shared(text: str) -> str:
    return _USES.sub(
        lambda uses: "\n".join(_with_shared(_read(f"libraries/{name.strip()}")) for name in uses[1].split(",")), text
    )


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _strip(text: str) -> str:
    """Drop comments and indentation: the first use of a script sends all of it."""
    lines = (line.split(" -- ")[0].strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))


Arguments = tuple[bytes | int, ...]

_STAND_IN = os.urandom(16).hex().encode()
"""As long as a token; it occurs in no name and no other argument."""

_LENGTH = len(_STAND_IN)
"""Redis's protocol puts the length before each argument, so a template fits tokens of this length only."""

_MOST = 8
"""Templates kept: one for each set of terms (the arguments after the token); most sets stay the same."""

pack: Callable[[tuple[str | bytes | int, ...]], bytes] = cast("Any", hiredis).pack_command
"""Its stub knows commands of one element only."""


class Command(Protocol):
    """What can be sent."""

    @property
    def name(self) -> str:
        """The name by which a connection remembers that it has sent the script."""
        ...

    def evalsha(self, args: Arguments) -> bytes:
        """Return it for a server that has the script."""
        ...

    def eval(self, args: Arguments) -> bytes:
        """Return it for any server."""
        ...


@final
class PlainCommand:
    """One that is no script, by its first *words*."""

    __slots__ = ("_words", "name")

    def __init__(self, *words: str) -> None:
        self._words = words
        self.name = " ".join(words)

    def eval(self, args: Arguments) -> bytes:
        return pack((*self._words, *args))

    evalsha = eval  # noqa: A003  # the method above


@final
class PreparedScript:
    """What to send for a script; *keys* returns the keys for its arguments, and *per_token*: the first is a token."""

    __slots__ = ("_keys", "_per_token", "_script", "_templates", "name")

    def __init__(self, script: Script, keys: Callable[[Arguments], tuple[bytes, ...]], *, per_token: bool) -> None:
        self._script = script
        self.name = script.name
        self._keys = keys
        self._per_token = per_token
        self._templates: dict[Arguments, tuple[bytes, ...]] = {}

    def evalsha(self, args: Arguments) -> bytes:
        """Return the command for a server that has the script."""
        if self._per_token:
            token, terms = args[0], args[1:]
            if isinstance(token, bytes) and len(token) == _LENGTH:  # a message may name any token
                return token.join(self._templates.get(terms) or self._template(terms))
        return self._packed("EVALSHA", self._script.sha, args)

    def eval(self, args: Arguments) -> bytes:
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
