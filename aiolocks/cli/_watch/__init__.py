"""`aiolocks watch`: show the names that are held or awaited, live: on a terminal by rich, otherwise as plain text."""

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

from .. import _arguments
from .._arguments import Unusable
from .._ls import add_kind, add_pattern
from .._nodes import Primaries
from ._board import SORTS, Board
from ._watcher import Watcher

if TYPE_CHECKING:
    from .._arguments import Commands
    from ._live import Live

_MAX_LINES = 1000
"""Maximum number of names in plain text."""

_KEYS = """
keys: up and down or k and j choose a name, Enter shows its holders and waiters, Escape goes back, / filters by a part
of the name, s sorts by another column, q quits
"""


def register(commands: "Commands") -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "watch",
        help="watch the names that are held or awaited, live",
        description="Watch the names that are held or awaited. While the server does not answer, it shows since when. "
        "It loads the server little: a few steps of SCAN a second, and reads of the names on the screen. The Redis "
        "user needs the rights +scan and, for the rates, +info.",
        epilog=_KEYS,
    )
    add_pattern(parser)
    _arguments.add_url(parser)
    _arguments.add_prefix(parser)
    add_kind(parser)
    parser.add_argument("--sort", choices=SORTS, default="waiting", help="sort by this column, waiting if left out")
    parser.add_argument(
        "--interval", type=_interval, default=1.0, metavar="S", help="seconds between refreshes, 1 if left out"
    )
    parser.add_argument("--once", action="store_true", help="print once, and exit")
    _arguments.add_json(parser, "print one JSON object per refresh, each on its own line, for scripts")
    parser.set_defaults(run=_watch)


def _interval(text: str) -> float:
    seconds = _arguments.seconds(text)
    if seconds < 0.2:
        raise argparse.ArgumentTypeError("must be at least 0.2 seconds")
    return seconds


async def _watch(arguments: argparse.Namespace) -> int:
    """Return the exit status."""
    live: type[Live] | None = None
    if not (arguments.once or arguments.json) and sys.stdout.isatty() and sys.stdin.isatty():
        try:
            from ._live import Live as live
        except ImportError:
            raise Unusable("on a terminal it needs the extra 'demo' of aiolocks; or use --once") from None
    board = Board(Primaries([]), arguments.prefix, arguments.pattern, arguments.kind, arguments.sort)
    watcher = Watcher(board, _arguments.url_of(arguments))
    try:
        await watcher.begin()
        if live is not None:
            await live(watcher, arguments.interval).run()
            return 0
        while True:
            await watcher.refresh(board.listed()[:_MAX_LINES])
            print(json.dumps(board.as_json()) if arguments.json else "\n".join(board.plain(_MAX_LINES)), flush=True)
            if arguments.once:
                return 2 if board.missing else 0
            await asyncio.sleep(arguments.interval)
            if not arguments.json:
                print(flush=True)
    finally:
        await watcher.close()
