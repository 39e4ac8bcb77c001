"""Loads the Lua scripts from `lua/*/*.lua`; the header of each file is its contract.

The header names every key and argument. The loader declares these names as Lua locals in front of the script, and
finds by them which keys of a name to send. So comments, code and callers cannot drift apart.

A script defines its functions again in each run, and putting every library in front of it would double what a grant
costs. So `uses` names the libraries of a script, and in the header of a library the libraries that it needs itself. The
loader replaces the script's line by the parts that the lines below it need. A part is a block of lines that begins
without indentation behind a blank line. The loader adds all of a part if one of the names that it declares or sets is
used, or if it acts: a call, `if` or loop. A part that only the lines below a `slow path` comment need is put there. If
that comment is indented, only its branch knows the part. So the fast path of `lock/grant` defines only two functions.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast, final

import hiredis

from .._core.tokens import LENGTH
from .._core.untyped import untyped

_FOLDER = Path(__file__).with_name("lua")
_loader = untyped(getattr(__spec__, "loader", None))
"""This module's loader, which also reads from a zip file. Importing `importlib.resources` would take 16 ms more."""

# Compiled when the first script is loaded, not when the library is imported.
_FIELD = r"(?m)^-- (KEYS|ARGV)\[(\d+)(…?)\]\s+(\w+)"
_OPTIONAL = r"(?m)^-- KEYS\[\d+\]\s+(\w+).*left out if (\w+) is 0$"
_USES = r"(?m)^-- uses\s+(.+)$"
_LIKE = r"(?m)^-- like\s+(.+)$"
_PLACE = r"(?m)^ *-- (?:uses|slow path)\b"
_DECLARED = r"(?m)^local (?:function )?([\w, ]+)"
_SET = r"(?m)^(?!local\b)([\w, ]+) ="
_ACTS = r"(?m)^(?:(?:if|for|while) |[\w.]+\()"
_STRING = r"'[^'\n]*'"
_NAME = r"(?<![\w.])[A-Za-z_]\w*"

_FLAG = "--!df flags=allow-undeclared-keys\n"
"""With it, Dragonfly lets a script use keys that it was not given, such as the queue of another session."""

_SUFFIXES = {
    "holder": b"", "holders": b"", "fence": b":fence", "meta": b":meta", "agreed": b":agreed", "queue": b":queue",
    "highest": b":ticket", "waiters": b":q:", "tombstone": b":t:",
}  # fmt: skip
"""The text behind the name in each key, by what the headers call it. Callers pass keys of other names themselves."""

_COMPLETED_BY = {"waiters": "address", "tombstone": "token"}
"""The argument with which the text of these keys ends; of an address, its first word, which is the session's name."""

Arguments = tuple[Any, ...]
"""Each is bytes or a number."""

Templates = dict[tuple[int, Arguments], list[list[bytes]]]
"""For each length of a key and arguments behind the token, the packed command. It is split at each token, and each part
again at each key."""


@final
@dataclass(slots=True, eq=False, repr=False)
class Script:
    """One script: what to send, and the names of its keys and arguments."""

    name: str
    source: bytes
    sha: bytes
    keys: tuple[str, ...]
    args: tuple[str, ...]
    layout: tuple[tuple[bytes, int], ...]
    """For each key, the text behind the name, and the position of the argument that completes it, or -1."""
    optional: int
    """Position of the argument that is 0 if the last key is left out. It is -1 if no key can be left out."""
    by_token: bool
    """Whether the first argument is a token."""
    templates: Templates = field(default_factory=Templates)
    """See `NamedScript`. A thread that renews leases uses them too."""

    def __str__(self) -> str:
        return self.name

    def keys_of(self, key: bytes, holder: bytes, args: Arguments) -> tuple[bytes, ...]:
        """Return the keys for *args*. *holder* is the key of the name's holder; its other keys begin with *key*."""
        keys = tuple([
            key + suffix + _end_of(suffix, cast("bytes", args[at])) if at >= 0 else key + suffix if suffix else holder
            for suffix, at in self.layout
        ])  # fmt: skip
        return keys if self.optional < 0 or args[self.optional] else keys[:-1]


def _end_of(suffix: bytes, arg: bytes) -> bytes:
    """Return the end of a key with this *suffix*, which *arg* completes."""
    return arg.partition(b" ")[0] if suffix == _SUFFIXES["waiters"] else arg


@cache
def load(name: str) -> Script:
    """Return the script of *name*, such as ``lock/grant``; read once per process."""
    text = text_of(name)
    fields: dict[str, list[str]] = {"KEYS": [], "ARGV": []}
    prelude = rest = ""
    for kind, position, more, word in re.findall(_FIELD, text):
        fields[kind].append(word)
        if int(position) != len(fields[kind]):
            raise ValueError(f"{name}.lua: {kind}[{position}] is out of order in the header")
        if more and position == "1":
            rest += f"local {word} = {kind}\n"
        elif more:
            rest += f"local {word} = {{}}\n"
            rest += f"for at = {position}, #{kind} do {word}[at - {position} + 1] = {kind}[at] end\n"
    for kind, names in fields.items():
        if names and f" = {kind}\n" not in rest:
            values = ", ".join(f"{kind}[{at + 1}]" for at in range(len(names)))
            prelude += f"local {', '.join(names)} = {values}\n"
    source = (_FLAG + prelude + rest + _strip(_with_libraries(text))).encode()
    sha = hashlib.sha1(source).hexdigest().encode()
    keys, args = tuple(fields["KEYS"]), tuple(fields["ARGV"])
    places = {word: at for at, word in enumerate(args)}
    layout = tuple((_SUFFIXES[key], places.get(_COMPLETED_BY.get(key, ""), -1)) for key in keys if key in _SUFFIXES)
    optional = re.search(_OPTIONAL, text)
    by_token = args[:1] == ("token",)
    return Script(name, source, sha, keys, args, layout, places[optional[2]] if optional else -1, by_token)


def source_of(name: str) -> bytes:
    """Return the text of the script *name*; empty if *name* is a command."""
    return load(name).source if "/" in name else b""


def text_of(name: str) -> str:
    """Return the text of a script file. A script `like` another is the other's text with `uses` of its own."""
    text = _read(name)
    like = re.search(_LIKE, text)
    uses = re.search(_USES, text)
    return re.sub(_USES, uses[0], _read(like[1].strip())) if like and uses else text


def libraries_of(text: str) -> list[str]:
    """Return the libraries that a script or library `uses`, each behind the libraries that it uses itself."""
    uses = re.search(_USES, text)
    found: dict[str, None] = {}
    for library in map(str.strip, uses[1].split(",") if uses else ()):
        found.update(dict.fromkeys([*libraries_of(_read(f"libraries/{library}")), library]))
    return list(found)


@final
class Part(NamedTuple):
    """A part of a library: the names that it declares or sets, the names that it needs, and whether it acts."""

    text: str
    gives: frozenset[str]
    needs: frozenset[str]
    acts: bool


def parts(library: str) -> list[Part]:
    """Return the parts of a library, in order."""
    return _parts(_read(f"libraries/{library}"))


@cache
def _parts(library: str) -> list[Part]:
    found: list[Part] = []
    for text in re.split(r"\n\n(?=\S)", library):
        outside = "\n".join(line for line in text.splitlines() if not line.startswith(" "))
        declared = _names(", ".join(re.findall(_DECLARED, outside)))
        if _strip(text):
            given = frozenset(declared + _names(", ".join(re.findall(_SET, outside))))
            needed = frozenset(_Places(text).needed(-1).difference(declared))
            found.append(Part(text, given, needed, re.search(_ACTS, outside) is not None))
    return found


@final
class _Places:
    """The lines of a text at which parts of libraries are put. Each place serves the rest of its branch."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self._depths = [len(line) - len(line.lstrip()) if line else 1000 for line in self.lines]
        self.ends = {at: self._end(at) for at, line in enumerate(self.lines) if re.match(_PLACE, line)}

    def needed(self, place: int) -> set[str]:
        """Return the names used between *place* and the end of its branch, without what a later place serves."""
        end = self.ends.get(place, len(self.lines))
        inner = {below for at in self.ends if place < at < end for below in range(at, self.ends[at])}
        return set(_names(_strip("\n".join(self.lines[at] for at in range(place + 1, end) if at not in inner))))

    def _end(self, place: int) -> int:
        depth = self._depths[place]
        return next((at for at in range(place, len(self.lines)) if self._depths[at] < depth), len(self.lines))


def _with_libraries(text: str) -> str:
    """Put into each place of a script the parts that it needs of its libraries."""
    known = [part for library in libraries_of(text) for part in parts(library)]
    return _put(text, known, [], [part for part in known if part.acts])


def _put(text: str, known: list[Part], there: list[Part], acting: list[Part]) -> str:
    """Put into each place of *text* those *known* parts that it needs and are not *there*; all *acting* ones first."""
    if not re.search(_PLACE, text):
        return text
    places = _Places(text)
    taken: dict[int, list[Part]] = {}
    for place in places.ends:
        seen = [*there, *(part for other, them in taken.items() if places.ends[other] > place for part in them)]
        wanted, acting = acting, []
        needed = places.needed(place).union(*(part.needs for part in wanted))
        while more := [
            part for part in known if part not in [*seen, *wanted] and part.gives & needed and not part.acts
        ]:
            wanted = wanted + more
            needed.update(*(part.needs for part in more))
        taken[place] = sorted(wanted, key=known.index)
        puts = [_put(part.text, known, seen + taken[place][: at + 1], []) for at, part in enumerate(taken[place])]
        places.lines[place] = "\n".join(puts)
    return "\n".join(places.lines)


def _names(code: str) -> list[str]:
    return re.findall(_NAME, re.sub(_STRING, "", code))


def _read(name: str) -> str:
    text: bytes = _texts.get(name) or _loader.get_data(str(_FOLDER / f"{name}.lua"))
    return text.decode()


def _read_all() -> dict[str, bytes]:
    """Return the texts of all scripts by name. This takes a millisecond now; later no file descriptor may be free."""
    found: dict[str, bytes] = {}
    with contextlib.suppress(OSError):  # such as in a zip file: then each is read when it is used
        for folder in os.listdir(_FOLDER):
            for file in os.listdir(_FOLDER / folder):
                with open(f"{_FOLDER}/{folder}/{file}", "rb", buffering=0) as text:
                    found[f"{folder}/{file.removesuffix('.lua')}"] = text.read()
    return found


_texts = _read_all()


def _strip(text: str) -> str:
    """Drop comments and indentation, as the first use of a script sends all of it."""
    lines = (line.split(" -- ")[0].strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))


pack: Callable[[tuple[str | bytes | int, ...]], bytes] = untyped(hiredis).pack_command
"""Its stub knows commands of one element only."""


class Command:
    """A command that can be sent: a script, or one of Redis's own."""

    __slots__ = ("script",)

    script: Any
    """The script or the words. A connection remembers by it which scripts it has sent."""

    @property
    def name(self) -> str:
        """Such as ``lock/grant`` or ``CLIENT SETINFO``."""
        return str(self.script)

    def eval(self, args: Arguments) -> bytes:
        """Return the bytes for any server, with all of a script."""
        raise NotImplementedError

    def evalsha(self, args: Arguments) -> bytes:
        """Return the bytes for a server that has the script."""
        return self.eval(args)


@final
class PlainCommand(Command):
    """A command of Redis's own, by its first *words*."""

    __slots__ = ("_words",)

    def __init__(self, *words: str) -> None:
        self._words = words
        self.script = " ".join(words)

    def eval(self, args: Arguments) -> bytes:
        return pack((*self._words, *args))


@final
@dataclass(slots=True, eq=False, repr=False)
class PreparedScript(Command):
    """A script with keys that the caller knows."""

    script: Script
    _keys: tuple[bytes, ...]

    def eval(self, args: Arguments) -> bytes:
        return _packed("EVAL", self.script.source, self._keys, args)

    def evalsha(self, args: Arguments) -> bytes:
        return _packed("EVALSHA", self.script.sha, self._keys, args)


_STAND_IN = b"\xfe" * LENGTH
_KEY_STAND_IN = b"\xff"
"""Stand-ins for a token, and for each byte of a key. UTF-8 has no such bytes, so only keys and tokens that a caller of
`compat` chooses can contain them."""

_MAX_TEMPLATES = 256
"""Maximum number of templates kept of a script."""


@final
@dataclass(slots=True, eq=False, repr=False)
class NamedScript(Command):
    """A script about one name; its keys follow from the header, see `Script.keys_of`.

    Each acquisition sends the same bytes around a name and a fresh token, and packing them costs more than all other
    work to send them. So they are packed in advance, around stand-ins for both: once for each script, set of terms (the
    arguments behind the token) and length of a key. It is not once for each name, because many are used only once.
    """

    script: Script
    key: bytes
    _holder: bytes
    """The key of the holder: *key*, except for `compat`."""
    _terms: Arguments | None = field(default=None, init=False)
    """The terms of the last call."""
    _around: list[bytes] | None = field(default=None, init=False)
    """The bytes around the token, once these terms were sent twice in a row."""

    def eval(self, args: Arguments) -> bytes:
        return _packed("EVAL", self.script.source, self.script.keys_of(self.key, self._holder, args), args)

    def evalsha(self, args: Arguments) -> bytes:
        terms = args[1:]
        if terms == self._terms and self._around and len(args[0]) == LENGTH:
            token: bytes = args[0]
            return token.join(self._around)
        # The protocol puts the length before each argument, so a template fits only tokens of the usual length. A
        # holder's key that differs from *key* belongs to `compat`, whose callers can choose bytes that are stand-ins.
        if not self.script.by_token or len(args[0]) != LENGTH or self._holder != self.key:
            return _packed("EVALSHA", self.script.sha, self.script.keys_of(self.key, self._holder, args), args)
        token = args[0]
        around = [*map(self.key.join, self.script.templates.get((len(self.key), terms)) or self._template(terms))]
        self._around = around if terms == self._terms else None
        self._terms = terms
        return token.join(around)

    def _template(self, terms: Arguments) -> list[list[bytes]]:
        templates, args = self.script.templates, (_STAND_IN, *terms)
        if len(templates) >= _MAX_TEMPLATES:  # equivalent: comparison, for speed
            templates.clear()
        key = _KEY_STAND_IN * len(self.key)
        packed = _packed("EVALSHA", self.script.sha, self.script.keys_of(key, key, args), args)
        template = templates[len(key), terms] = [part.split(key) for part in packed.split(_STAND_IN)]
        return template


def _packed(command: str, script: bytes, keys: tuple[bytes, ...], args: Arguments) -> bytes:
    return pack((command, script, len(keys), *keys, *args))
