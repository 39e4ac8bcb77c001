"""`aiolocks ls` and `aiolocks show`: list the names that are held or awaited, with their holders and waiters."""

import argparse
import asyncio
import json
import shlex
import sys
from typing import TYPE_CHECKING
from unicodedata import combining, east_asian_width

from .._core.values import printable
from . import _arguments, _names
from ._arguments import Unusable
from ._connect import place_of
from ._nodes import primaries

if TYPE_CHECKING:
    from ._arguments import Commands

HEAD = f"{'KIND':9} {'HELD':>7} {'LEFT':>7} {'WAITING':>7}  {'BY':32} NAME  NOTE"
_MAX_SHOWN = 1000

_VERY_LONG = 100 * 365 * 86400.0
"""Seconds above which a duration is shown as "> 99 y"."""


def register(commands: "Commands") -> None:
    """Add these commands to the parser."""
    listing = commands.add_parser(
        "ls",
        help="list the names that are held or awaited",
        description="List the names that are held, awaited or paused, a thousand at a time, each thousand in order. "
        "It scans all keys of the server in small steps; the Redis user needs the right +scan.",
    )
    add_pattern(listing)
    listing.set_defaults(run=_list)
    showing = commands.add_parser(
        "show",
        help="show the holders and waiters of one name",
        description="Show the holders and waiters of one name. The exit status is 1 if it is neither held nor awaited.",
    )
    showing.add_argument("name", metavar="NAME", type=_arguments.name, help="the name")
    showing.set_defaults(run=_show)
    for parser in (listing, showing):
        _arguments.add_url(parser)
        _arguments.add_prefix(parser)
        add_kind(parser)
        _arguments.add_json(parser)


def add_kind(parser: argparse.ArgumentParser) -> None:
    """Add ``--kind``."""
    parser.add_argument("--kind", choices=sorted(_names.FAMILIES), help="only this kind; one name may be of several")


def add_pattern(parser: argparse.ArgumentParser) -> None:
    """Add ``PATTERN``."""
    parser.add_argument(
        "pattern", nargs="?", default="*", metavar="PATTERN", help="names, such as 'orders:*'; else all"
    )


async def _list(arguments: argparse.Namespace) -> int:
    """Print each page as soon as it is complete, and return the exit status. The JSON is one array."""
    lead = first = "[" if arguments.json else HEAD + "\n"
    url = _arguments.url_of(arguments)
    try:
        async with primaries(url) as found:
            async for page in _names.scan(found, arguments.prefix, arguments.pattern, arguments.kind):
                await _names.read(found, page, arguments.prefix)
                for name in sorted(page, key=lambda name: (name.name, name.kind)):
                    if not name.in_use:
                        continue  # it was released after the scan
                    if arguments.json:
                        sys.stdout.write(f"{lead}{json.dumps(_names.as_json(name))}")
                    else:
                        sys.stdout.write(f"{lead}{line(name)}\n")
                    lead = ",\n" if arguments.json else ""
                sys.stdout.flush()
    except Unusable:
        if arguments.json and lead != first:
            print("]")  # so that the incomplete JSON is valid
        raise
    if arguments.json:
        print("[]" if lead == first else "]")
    if found.missing:
        away = f"{', '.join(found.missing)} {'does' if len(found.missing) == 1 else 'do'} not answer"
        print(f"aiolocks ls: {away}: the names there are not listed", file=sys.stderr)
        return 2
    if lead == first and not arguments.json:
        names = "" if arguments.pattern == "*" else f", names {_arguments.shown(arguments.pattern)}"
        kind = f", kind {arguments.kind}" if arguments.kind else ""
        where = f"at {place_of(url)} (prefix {_arguments.shown(arguments.prefix)}{names}{kind})"
        print(f"aiolocks ls: nothing is held or awaited {where}", file=sys.stderr)
    return 0


def line(name: _names.Name) -> str:
    """Return the row of a name in the table."""
    said = note(name)
    return (
        f"{name.kind:9} {duration(name.seconds):>7} {duration(name.remaining):>7} {waiting(name):>7}  "
        f"{fitted(by(name), 32)} {_arguments.shown(name.name)}{'  ' if said else ''}{said}"
    )


def note(name: _names.Name) -> str:
    """Return the note of the only holder, or an empty text."""
    return printable(name.holders[0].note or "") if name.held == len(name.holders) == 1 else ""


ENDLESS = "its lease has no expiry and its process is gone, so it never ends"


def waiting(name: _names.Name) -> str:
    """Return the number of waiters, with a plus sign if there are more than were counted."""
    return f"{name.waiting}{'+' if name.more_wait else ''}"


def by(name: _names.Name) -> str:
    """Return the holders in a few words, behind a pause."""
    if name.paused:
        return f"paused {duration(name.paused)}{f', {_holders(name)}' if name.held else ''}"
    return _holders(name) if name.held else "-"


def _holders(name: _names.Name) -> str:
    if name.limit:
        more = "+" if name.held > len(name.holders) else ""
        used = f"{name.permits}{more} of {name.limit}"
        return f"{used} starts used" if name.kind == "rate" else f"{used} permits, {name.held} holders"
    mode = f"{name.holders[0].mode} " if name.holders and name.holders[0].mode else ""
    if name.held > 1:
        return f"{mode}{name.held} holders"
    return mode + printable(name.holders[0].called if name.holders else "?")


def duration(seconds: float | None) -> str:
    """Return a duration in at most seven characters."""
    if seconds is None:
        return "-"
    if seconds >= _VERY_LONG:
        return "> 99 y"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def fitted(text: str, width: int) -> str:
    """Return as much of *text* as a terminal shows in *width* columns, padded to these. Some characters take two."""
    columns = [2 if east_asian_width(sign) in "WF" else 0 if combining(sign) else 1 for sign in text]
    if sum(columns) > width:
        room = width - 1
        fits = next(at for at in range(len(text)) if sum(columns[: at + 1]) > room)
        text, columns = text[:fits] + "…", [*columns[:fits], 1]
    return text + " " * (width - sum(columns))


def _show(arguments: argparse.Namespace) -> int:
    found = asyncio.run(_shown(arguments))
    if arguments.json:
        print(json.dumps([_names.as_json(name, waiters=True) for name in found], indent=2))
    else:
        for name in found:
            print(*lines(name), sep="\n")
        if not found:
            print(f"{_arguments.shown(arguments.name)} is neither held nor awaited")
    return 0 if found else 1


async def _shown(arguments: argparse.Namespace) -> list[_names.Name]:
    url = _arguments.url_of(arguments)
    names = await _names.named(url, arguments.prefix, arguments.name, arguments.kind, most=_MAX_SHOWN, waiters=True)
    return [name for name in names if name.in_use]


def lines(name: _names.Name) -> list[str]:
    """Return all that is known of a name, as lines of text."""
    limit = f", limit {name.limit}{' (pinned)' if name.pinned else ''}" if name.limit else ""
    at_least = "at least " if name.more_wait else ""
    rate = name.kind == "rate"  # it has no holders
    used = f"{name.permits}{'+' if name.held > len(name.holders) else ''} starts used" if rate else f"{name.held} held"
    paused = f", paused for {duration(name.paused)}" if name.paused else ""
    shown = [f"{name.kind} {_arguments.shown(name.name)}: {used}, {at_least}{name.waiting} waiting{limit}{paused}"]
    shown += [
        f"  held    {duration(one.seconds):>7}, {duration(one.remaining):>7} left  {_share(name, one)}"
        f"{printable(one.called)}  fencing token {one.fencing_token}{_noted(one)}"
        for one in (() if rate else name.holders)
    ]
    if any(one.state == _names.ORPHANED for one in name.holders):
        shown.append(f"  {ENDLESS}: free it with aiolocks release {shlex.quote(_arguments.shown(name.name))} --force")
    if name.held > len(name.holders) and not rate:
        shown.append(f"  and {name.held - len(name.holders)} more")
    shown += [
        f"  waits   {duration(one.seconds):>7}  {_share(name, one)}{printable(one.called)}{_noted(one)}"
        for one in name.waiters
    ]
    if name.waiters and name.waiting > len(name.waiters):
        shown.append(f"  and {at_least}{name.waiting - len(name.waiters)} more")
    return shown


def _noted(one: _names.Person) -> str:
    return f"  note: {printable(one.note)}" if one.note else ""


def _share(name: _names.Name, one: _names.Person) -> str:
    if one.mode:
        return f"{one.mode}  "
    return f"{one.permits} permits  " if name.kind == "semaphore" else ""
