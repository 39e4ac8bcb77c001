"""`aiolocks pause NAME SECONDS` and `aiolocks resume NAME`: stop the grants of a semaphore in all processes."""

import argparse
import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import RedisError

from .._core.options import check_pause
from .._primitives.semaphore import Semaphore
from . import _arguments, _names
from ._arguments import Unusable
from ._connect import manager_of, place_of, reason
from ._ls import duration, printable

if TYPE_CHECKING:
    from ._arguments import Commands

T = TypeVar("T")


def register(commands: "Commands") -> None:
    """Add these commands to the parser."""
    pausing = commands.add_parser(
        "pause",
        help="grant no permits of a semaphore for a while",
        description="Grant no permits of a semaphore to any process for so many seconds. Holders go on, and waiters "
        "keep their places. A pause only extends an earlier one. It never waits.",
    )
    resuming = commands.add_parser(
        "resume",
        help="end the pause of a semaphore",
        description="End the pause of a semaphore and grant what is free to the waiters. The exit status is 1 if it "
        "is not paused.",
    )
    for parser in (pausing, resuming):
        parser.add_argument("name", metavar="NAME", type=_arguments.name, help="the name")
    pausing.add_argument("seconds", metavar="SECONDS", type=_seconds, help="how long from now on, up to a day")
    for parser, run in ((pausing, _pause), (resuming, _resume)):
        _arguments.add_url(parser)
        _arguments.add_prefix(parser)
        parser.add_argument("--kind", choices=["semaphore"], help="the only kind that can be paused")
        _arguments.add_json(parser)
        parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    """Type of an argument: how long a pause lasts."""
    try:
        return check_pause(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0.001 to 86400, not {text!r}") from None


async def _pause(arguments: argparse.Namespace) -> int:
    _, left = await _ask(arguments, lambda semaphore: semaphore.pause(arguments.seconds))
    if arguments.json:
        print(json.dumps({"name": arguments.name, "paused": round(left, 3)}, indent=2))
    else:
        print(f"semaphore {printable(arguments.name)}: paused for {duration(left)}")
    return 0


async def _resume(arguments: argparse.Namespace) -> int:
    before, ended = await _ask(arguments, Semaphore.resume)
    if arguments.json:
        print(json.dumps({"name": arguments.name, "resumed": ended, "before": round(before.paused, 3)}, indent=2))
    else:
        told = f"resumed; its pause had {duration(before.paused)} left" if ended else "it is not paused"
        print(f"semaphore {printable(arguments.name)}: {told}")
    return 0 if ended else 1


async def _ask(
    arguments: argparse.Namespace, ask: Callable[[Semaphore], Coroutine[Any, Any, T]]
) -> tuple[_names.Name, T]:
    """Return the name as it was before, and what *ask* returns."""
    url = _arguments.url_of(arguments)
    (before,) = await _names.named(url, arguments.prefix, arguments.name, "semaphore")
    async with manager_of(url) as locks:
        try:
            return before, await ask(locks.semaphore(arguments.name, None, prefix=arguments.prefix))
        except (RedisError, OSError) as error:
            raise Unusable(f"Redis at {place_of(url)} cannot be used: {reason(error, url)}") from None
