"""`aiolocks resize NAME N`: change a semaphore's limit for all processes."""

import argparse
import json
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from . import _arguments, _names
from ._arguments import Unusable
from ._connect import manager_of, place_of, reason

if TYPE_CHECKING:
    from ._arguments import Commands


def register(commands: "Commands") -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "resize",
        help="change a semaphore's limit",
        description="Change a semaphore's limit for all processes, at once. A higher limit grants permits to waiters. "
        "A lower limit revokes nothing. It never waits.",
    )
    parser.add_argument("name", metavar="NAME", type=_arguments.name, help="the name")
    parser.add_argument("limit", metavar="N", type=_limit, help="the new limit")
    _arguments.add_url(parser)
    _arguments.add_prefix(parser)
    parser.add_argument("--kind", choices=["semaphore"], help="the only kind that has a limit")
    pins = parser.add_mutually_exclusive_group()
    pins.add_argument(
        "--pin",
        action="store_true",
        default=None,
        help="keep this limit when processes that start later declare another",
    )
    pins.add_argument(
        "--unpin", dest="pin", action="store_false", default=None, help="let processes that start later change it again"
    )
    _arguments.add_json(parser)
    parser.set_defaults(run=_resize)


def _limit(text: str) -> int:
    """Type of an argument: a limit."""
    if not text.isdecimal() or not 1 <= int(text[:11]) <= 10**9:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 1,000,000,000, not {text!r}")
    return int(text)


async def _resize(arguments: argparse.Namespace) -> int:
    url = _arguments.url_of(arguments)
    (before,) = await _names.named(url, arguments.prefix, arguments.name, "semaphore")
    async with manager_of(url) as locks:
        semaphore = locks.semaphore(arguments.name, None, prefix=arguments.prefix)
        try:
            await semaphore.resize(arguments.limit, pin=arguments.pin)
        except (RedisError, OSError) as error:
            raise Unusable(f"Redis at {place_of(url)} cannot be used: {reason(error, url)}") from None
    pinned = before.pinned if arguments.pin is None else arguments.pin
    if arguments.json:
        report = {"name": arguments.name, "limit": arguments.limit, "pinned": pinned, "before": before.limit}
        print(json.dumps(report, indent=2))
    else:
        was = "there was none" if before.limit is None else f"it was {before.limit}"
        shown = f"{arguments.limit}{' (pinned)' if pinned else ''}"
        print(f"semaphore {_arguments.shown(arguments.name)}: the limit is {shown}; {was}")
    return 0
