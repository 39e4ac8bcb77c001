"""The Lua scripts, read from `lua/*/*.lua`: each file's header is its contract.

The header names every key and argument, and those names are declared as Lua locals in front of the script, so the
names that callers pass, the comments and the code cannot drift apart.

What a script defines is made anew in each run, and a library in front of everything would double what a grant costs.
So `uses` names the libraries of a script, and of these the loader puts in its place only what the lines below call for.
A part of a library (from a line that is not indented, behind a blank one, to the next such) comes as a whole, if a name
that it declares or sets is used, or if it acts. What only the lines below a `slow path` call for comes there; if that
comment is indented, it is known to its branch alone. So `lock/grant` defines two functions on its fast path.

Every acquisition sends the same bytes around a name and a fresh token, and packing them anew costs more than all else
in sending. So the command is packed once around stand-ins for both, and split there.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast, final

import hiredis

from .._core.tokens import LENGTH

_FOLDER = Path(__file__).with_name("lua")
_loader: Any = getattr(__spec__, "loader", None)
"""This module's loader, which also reads from a zip file. Importing `importlib.resources` would take 16 ms more."""

# Compiled when the first script is loaded, not when the library is imported.
_FIELD = r"(?m)^-- (KEYS|ARGV)\[(\d+)(…?)\]\s+(\w+)"
_USES = r"(?m)^-- uses\s+(.+)$"
_LIKE = r"(?m)^-- like\s+(.+)$"
_PLACE = r"(?m)^ *-- (?:uses|slow path)\b"
_DECLARED = r"(?m)^local (?:function )?([\w, ]+)"
_SET = r"(?m)^(?!local\b)([\w, ]+) ="
_ACTS = r"(?m)^(?:(?:if|for|while) |[\w.]+\()"
_STRING = r"'[^'\n]*'"
_NAME = r"(?<![\w.])[A-Za-z_]\w*"

_FLAG = "--!df flags=allow-undeclared-keys\n"
"""With it, Dragonfly lets a script reach keys it was not given, such as that of the line of a session that waits."""


@dataclass(frozen=True, slots=True, eq=False)
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
    text = text_of(name)
    fields: dict[str, list[str]] = {"KEYS": [], "ARGV": []}
    prelude = rest = ""
    for kind, position, more, field in re.findall(_FIELD, text):
        fields[kind].append(field)
        if int(position) != len(fields[kind]):
            raise ValueError(f"{name}.lua: {kind}[{position}] is out of order in the header")
        if more and position == "1":
            rest += f"local {field} = {kind}\n"
        elif more:
            rest += f"local {field} = {{}}\n"
            rest += f"for at = {position}, #{kind} do {field}[at - {position} + 1] = {kind}[at] end\n"
    for kind, names in fields.items():
        if names and f" = {kind}\n" not in rest:
            values = ", ".join(f"{kind}[{at + 1}]" for at in range(len(names)))
            prelude += f"local {', '.join(names)} = {values}\n"
    source = (_FLAG + prelude + rest + _strip(_with_libraries(text))).encode()
    sha = hashlib.sha1(source).hexdigest().encode()
    return Script(name, source, sha, tuple(fields["KEYS"]), tuple(fields["ARGV"]))


def source_of(name: str) -> bytes:
    """Return the text of the script of that *name*; nothing if it is a command's."""
    return load(name).source if "/" in name else b""


def text_of(name: str) -> str:
    """Return what stands in a script; of one that is `like` another, that one's, with libraries of its own."""
    text = _read(name)
    like = re.search(_LIKE, text)
    uses = re.search(_USES, text)
    return re.sub(_USES, uses[0], _read(like[1].strip())) if like and uses else text


@final
@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of a library: which names it declares or sets, which it uses, and whether it does anything by itself."""

    text: str
    gives: frozenset[str]
    needs: frozenset[str]
    acts: bool


def parts(library: str) -> list[Part]:
    """Return what stands in a library, in order."""
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
    """Where in a text parts of libraries are put: each is good until its branch ends."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self._depths = [len(line) - len(line.lstrip()) if line else 1000 for line in self.lines]
        self.ends = {at: self._end(at) for at, line in enumerate(self.lines) if re.match(_PLACE, line)}

    def needed(self, place: int) -> set[str]:
        """Return the names used from there on to the end of its branch, but for what is below a later place."""
        end = self.ends.get(place, len(self.lines))
        inner = {below for at in self.ends if place < at < end for below in range(at, self.ends[at])}
        return set(_names(_strip("\n".join(self.lines[at] for at in range(place + 1, end) if at not in inner))))

    def _end(self, place: int) -> int:
        depth = self._depths[place]
        return next((at for at in range(place, len(self.lines)) if self._depths[at] < depth), len(self.lines))


def _with_libraries(text: str) -> str:
    """Put what a script needs of its libraries in each of its places."""
    uses = re.search(_USES, text)
    known = [part for library in uses[1].split(",") for part in parts(library.strip())] if uses else []
    return _put(text, known, [], [part for part in known if part.acts])


def _put(text: str, known: list[Part], there: list[Part], acting: list[Part]) -> str:
    """Put into each of the places of *text* what it needs of the *known* and is not *there*, and the *acting* first."""
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
    return (_texts.get(name) or cast("bytes", _loader.get_data(str(_FOLDER / f"{name}.lua")))).decode()


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
    """Drop comments and indentation: the first use of a script sends all of it."""
    lines = (line.split(" -- ")[0].strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))


Arguments = tuple[bytes | int, ...]

_LENGTH = LENGTH
"""Redis's protocol puts the length before each argument, so a template fits tokens of this length only."""

_STAND_IN = b"\xfe" * _LENGTH
"""Stands for a token; these bytes occur in no UTF-8 and so in no name, prefix or other argument."""

_NAME_STAND_IN = b"\xff"
"""So many stand for the key of a name of that length."""

_MOST = 256
"""Templates kept of a script: one for each set of terms (the arguments after the token) and each length of a name."""

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
    """What to send for a script; *keys* returns the keys for its arguments."""

    __slots__ = ("_keys", "_script", "name")

    def __init__(self, script: Script, keys: Callable[[Arguments], tuple[bytes, ...]]) -> None:
        self._script = script
        self.name = script.name
        self._keys = keys

    def evalsha(self, args: Arguments) -> bytes:
        """Return the command for a server that has the script."""
        return _packed("EVALSHA", self._script.sha, self._keys(args), args)

    def eval(self, args: Arguments) -> bytes:
        """Return the command that brings the script along."""
        return _packed("EVAL", self._script.source, self._keys(args), args)


Layout = Callable[[bytes, Arguments], tuple[bytes, ...]]
"""Returns the keys that a script takes, by the one that all keys of the name begin with, and by its arguments."""


@final
class TokenScript:
    """A script whose first argument is a token, for all names; its keys are laid out by *keys*.

    If they do not all begin alike (*each_its_own*), no command stands for those of other names.
    """

    __slots__ = ("_each_its_own", "_last", "_templates", "keys", "script")

    def __init__(self, script: Script, keys: Layout, *, each_its_own: bool = False) -> None:
        self.script = script
        self.keys = keys
        self._each_its_own = each_its_own
        self._templates: dict[tuple[int, Arguments], list[bytes]] = {}
        self._last: tuple[int, Arguments, list[bytes]] = (0, (), [])
        """In one piece, as a thread that renews leases uses the same."""

    def with_stand_in(self, base: bytes, terms: Arguments) -> bytes:
        """Return the command for a name, with the stand-in where the token goes.

        A name may be used but once, so what is packed stands for all names of that length.
        """
        if self._each_its_own:
            args = (_STAND_IN, *terms)
            return _packed("EVALSHA", self.script.sha, self.keys(base, args), args)
        length, known, template = self._last
        if len(base) != length or terms != known:  # most are as the last one: cheaper than looking it up
            template = self._template(len(base), terms)
            self._last = len(base), terms, template
        return base.join(template)

    def _template(self, length: int, terms: Arguments) -> list[bytes]:
        template = self._templates.get((length, terms))
        if template is None:
            if len(self._templates) >= _MOST:  # equivalent: comparison, for speed
                self._templates.clear()
            base, args = _NAME_STAND_IN * length, (_STAND_IN, *terms)
            template = _packed("EVALSHA", self.script.sha, self.keys(base, args), args).split(base)
            self._templates[length, terms] = template
        return template


@final
class NamedScript:
    """What to send for a script about the tokens of one name: whose keys begin with *base*."""

    __slots__ = ("_of", "_template", "_terms", "base", "name")

    def __init__(self, of: TokenScript, base: bytes) -> None:
        self._of = of
        self.base = base
        self.name = of.script.name
        self._terms: Arguments | None = None
        self._template: list[bytes] = []
        """For the terms asked for last: most are asked for again."""

    def evalsha(self, args: Arguments) -> bytes:
        """Return the command for a server that has the script."""
        token, terms = args[0], args[1:]
        if isinstance(token, bytes) and len(token) == _LENGTH:  # a message may name any token
            if terms != self._terms:  # of a name that is used but once there is no second time
                self._terms, self._template = terms, []
                return self._of.with_stand_in(self.base, terms).replace(_STAND_IN, token)
            if not self._template:
                self._template = self._of.with_stand_in(self.base, terms).split(_STAND_IN)
            return token.join(self._template)
        return _packed("EVALSHA", self._of.script.sha, self._of.keys(self.base, args), args)

    def eval(self, args: Arguments) -> bytes:
        """Return the command that brings the script along."""
        return _packed("EVAL", self._of.script.source, self._of.keys(self.base, args), args)


def _packed(command: str, script: bytes, keys: tuple[bytes, ...], args: Arguments) -> bytes:
    return pack((command, script, len(keys), *keys, *args))
