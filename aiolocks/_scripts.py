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
    """Return the script of *name*, such as ``lock_grant``; read once per process."""
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
        lambda uses: "\n".join(_with_shared(_read(f"_{name.strip()}")) for name in uses[1].split(",")), text
    )


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _strip(text: str) -> str:
    """Leave comments and indentation at home: the first use of a script sends it whole."""
    lines = (line.split(" -- ")[0].strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))
