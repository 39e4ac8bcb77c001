"""`aiolocks watch`: what is held and awaited, as it changes; with rich, on a terminal, else in plain text."""

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

from .. import _arguments
from .._errors import Unusable
from .._ls import add_kind
from .._nodes import Primaries
from ._board import SORTS, Board
from ._looks import Looks

if TYPE_CHECKING:
    from .._arguments import Commands
    from ._live import Live

_MOST_LINES = 1000
"""In plain text, where there is no screen that could be full."""

_KEYS = """
keys: up and down or k and j choose a name, Enter shows its holders and waiters, Escape goes back; / filters by a part
of the name, s sorts by another column, q quits
"""


def register(commands: "Commands") -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "watch",
        help="watch what is held and awaited, live",
        description="Watch what is held and awaited. While the server is away, it says since when. It asks the server "
        "for little: a few steps of SCAN a second, and about the names on the screen. The Redis user needs the "
        "rights +scan and, for the rates, +info.",
        epilog=_KEYS,
    )
    parser.add_argument(
        "pattern", nargs="?", default="*", metavar="PATTERN", help="names, such as 'orders:*'; else all"
    )
    _arguments.add_url(parser)
    _arguments.add_prefix(parser)
    add_kind(parser)
    parser.add_argument("--sort", choices=SORTS, default="waiting", help="by which column, waiting if left out")
    parser.add_argument(
        "--interval", type=_interval, default=1.0, metavar="S", help="seconds between two looks, 1 if left out"
    )
    parser.add_argument("--once", action="store_true", help="look once, print it, and end")
    _arguments.add_json(parser, "print one JSON object for each look, in a line of its own, for scripts")
    parser.set_defaults(run=_run)


def _interval(text: str) -> float:
    seconds = _arguments.seconds(text)
    if seconds < 0.2:
        raise argparse.ArgumentTypeError("must be at least 0.2 seconds")
    return seconds


def _run(arguments: argparse.Namespace) -> int:
    return asyncio.run(_watch(arguments))


async def _watch(arguments: argparse.Namespace) -> int:
    """Return the exit status."""
    live: type[Live] | None = None
    if not (arguments.once or arguments.json) and sys.stdout.isatty() and sys.stdin.isatty():
        try:
            from ._live import Live as live
        except ImportError:
            raise Unusable("on a terminal it needs the extra 'demo' of aiolocks; or use --once") from None
    board = Board(Primaries([]), arguments.prefix, arguments.pattern, arguments.kind, arguments.sort)
    looks = Looks(board, _arguments.url_of(arguments))
    try:
        await looks.begin()
        if live is not None:
            await live(looks, arguments.interval).run()
            return 0
        while True:
            await looks.look(board.listed()[:_MOST_LINES])
            print(json.dumps(board.as_json()) if arguments.json else "\n".join(board.plain(_MOST_LINES)), flush=True)
            if arguments.once:
                return 2 if board.missing else 0
            await asyncio.sleep(arguments.interval)
            if not arguments.json:
                print(flush=True)
    finally:
        await looks.close()
