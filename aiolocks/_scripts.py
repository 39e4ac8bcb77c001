"""The Lua scripts, read from `lua/*.lua`: each file's header is its contract.

The header names every key and argument, and those names are declared as Lua locals in front of the script, so the
names that callers pass, the comments and the code cannot drift apart. `uses` puts shared files in its place: what
they define is made anew in each run, and so comes after whatever can do without it.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).with_name("lua")
_FIELD = re.compile(r"^-- (KEYS|ARGV)\[(\d+)(…?)\]\s+(\w+)", re.MULTILINE)
_USES = re.compile(r"^-- uses\s+(.+)$", re.MULTILINE)


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
    """Return the script of *name*, such as ``lock_grant``; read once per process."""
    text = _read(name)
    keys: list[str] = []
    args: list[str] = []
    prelude: list[str] = []
    for kind, position, more, field in _FIELD.findall(text):
        fields = keys if kind == "KEYS" else args
        fields.append(field)
        if int(position) != len(fields):
            raise ValueError(f"{name}.lua: {kind}[{position}] is out of order in the header")
        if more:
            prelude.append(f"local {field} = {{unpack({kind}, {position})}}")
        else:
            prelude.append(f"local {field} = {kind}[{position}]")
    whole = _USES.sub(lambda uses: "\n".join(_read(f"_{shared.strip()}") for shared in uses[1].split(",")), text)
    source = ("\n".join([*prelude, _strip(whole)])).encode()
    return Script(name, source, hashlib.sha1(source).hexdigest().encode(), tuple(keys), tuple(args))


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _strip(text: str) -> str:
    """Leave comments and indentation at home: the first use of a script sends it whole."""
    lines = (line.split(" -- ")[0].strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))
