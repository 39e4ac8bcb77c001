"""What a request asks for: which script, with its keys and arguments by the names in the script's own header."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import hiredis

from aiolocks._redis.scripts import Script

from .versions import packages


def scripts(seed: int = 0) -> dict[bytes, Script]:
    """Return the scripts of the library, and of its other version, by what requests name them by: source and digest."""
    found: dict[bytes, Script] = {}
    for package in packages(seed):
        for path in Path(package.__file__).parent.glob("_redis/lua/*/*.lua"):
            if path.parent.name != "libraries":
                script = package._redis.scripts.load(f"{path.parent.name}/{path.stem}")
                found[script.sha] = found[script.source] = script
    return found


def words_of(request: bytes) -> list[bytes]:
    parser: Any = hiredis.Reader()  # its stub has no types for its arguments and results
    parser.feed(request)
    words: list[bytes] = parser.gets()
    return words


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """One run of a script. Of the arguments that the last name stands for, *args* has the first, and *more* all."""

    script: Script
    base: bytes
    args: dict[str, bytes]
    more: list[bytes]
    values: list[bytes]


def read(script: Script, fields: list[bytes]) -> Asked:
    """Return what *fields*, a request to run *script*, asks for."""
    count = int(fields[2])
    values = fields[3 + count :]
    args = dict(zip(script.args, values, strict=False))
    if "address" in args:
        args["session"], args["life_ms"], args["channels"] = args["address"].split(b" ", 2)
    return Asked(script, base=fields[3], args=args, more=values[len(script.args) - 1 :], values=values)


def whole(verb: str, reply: Any) -> Any:
    """Return *reply* as a script gives it when there is more to tell than one number, with its grants in one list."""
    fields: list[Any] = reply
    if isinstance(reply, bytes):
        ended, *grants = reply.split()
        fields = [int(ended), *grants]
    elif isinstance(reply, int):
        fields = _grant(reply) if verb == "grant" else [reply]
    if verb in {"release", "resize", "pause", "downgrade", "revoke"}:
        return [fields[0], _grants(fields[1:])]
    if verb in {"grant", "recheck"} and fields != [b"withdrawn"]:
        at = 5 if verb == "recheck" or fields[0] == b"queued" else 2
        return [*fields[:at], _grants(fields[at]), *fields[at + 1 :]]
    return reply


def _grant(number: int) -> list[Any]:
    """Return what a fencing token, or a ticket below 0, stands for."""
    return [b"granted", number, 0] if number > 0 else [b"queued", -number, -1, 0, 1, 0]


def _grants(flat: Any) -> list[Any]:
    """Return the token, the fencing token and the TTL of each grant in a reply, which may have 0 for none."""
    return list(zip(flat[::3], map(int, flat[1::3]), map(int, flat[2::3]), strict=True)) if flat else []
