"""`aiolocks pause NAME SECONDS` and `resume NAME`: stop the grants of a semaphore or a rate limiter everywhere."""

import argparse
import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import RedisError

from .._core.options import check_pause
from .._primitives.semaphore import Semaphore
from .._rate_limiter import RateLimiter
from . import _arguments, _names
from ._arguments import Unusable
from ._connect import manager_of, place_of, reason
from ._ls import duration

if TYPE_CHECKING:
    from ._arguments import Commands

T = TypeVar("T")

_KINDS = ["semaphore", "rate"]


def register(commands: "Commands") -> None:
    """Add these commands to the parser."""
    pausing = commands.add_parser(
        "pause",
        help="grant nothing of a semaphore or a rate limiter for a while",
        description="Grant no permits of a semaphore, or no starts of a rate limiter, to any process for so many "
        "seconds. Holders go on, and waiters keep their places. A pause only extends an earlier one. It never waits.",
    )
    resuming = commands.add_parser(
        "resume",
        help="end the pause of a semaphore or a rate limiter",
        description="End the pause of a semaphore or a rate limiter, and grant what it held back. The exit status is "
        "1 if it is not paused.",
    )
    for parser in (pausing, resuming):
        parser.add_argument("name", metavar="NAME", type=_arguments.name, help="the name")
    pausing.add_argument("seconds", metavar="SECONDS", type=_seconds, help="how long from now on, up to a day")
    for parser, run in ((pausing, _pause), (resuming, _resume)):
        _arguments.add_url(parser)
        _arguments.add_prefix(parser)
        parser.add_argument("--kind", choices=_KINDS, help="only this kind; one name may be of both")
        _arguments.add_json(parser)
        parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    """Type of an argument: how long a pause lasts."""
    try:
        return check_pause(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0.001 to 86400, not {text!r}") from None


async def _pause(arguments: argparse.Namespace) -> int:
    before, left = await _ask(arguments, lambda paused: paused.pause(arguments.seconds))
    if arguments.json:
        print(json.dumps({"kind": before.kind, "name": before.name, "paused": round(left, 3)}, indent=2))
    else:
        print(f"{before.kind} {_arguments.shown(before.name)}: paused for {duration(left)}")
    return 0


async def _resume(arguments: argparse.Namespace) -> int:
    before, ended = await _ask(arguments, lambda paused: paused.resume())
    if arguments.json:
        # JSON has the exact name if it is on the server; otherwise it may be a URL in the wrong place.
        name = before.name if before.limit or before.in_use else _arguments.masked(before.name)
        report = {"kind": before.kind, "name": name, "resumed": ended, "before": round(before.paused, 3)}
        print(json.dumps(report, indent=2))
    else:
        told = f"resumed; its pause had {duration(before.paused)} left" if ended else "it is not paused"
        print(f"{before.kind} {_arguments.shown(before.name)}: {told}")
    return 0 if ended else 1


async def _ask(
    arguments: argparse.Namespace, ask: Callable[[Semaphore | RateLimiter], Coroutine[Any, Any, T]]
) -> tuple[_names.Name, T]:
    """Return the name as it was before, and what *ask* returns."""
    url = _arguments.url_of(arguments)
    before = await _known(arguments, url)
    async with manager_of(url) as locks:
        try:
            # Neither a limit nor a window is declared by a pause.
            if before.kind == "rate":
                return before, await ask(locks.rate_limiter(before.name, 1, per=1, prefix=arguments.prefix))
            return before, await ask(locks.semaphore(before.name, None, prefix=arguments.prefix))
        except (RedisError, OSError) as error:
            raise Unusable(f"Redis at {place_of(url)} cannot be used: {reason(error, url)}") from None


async def _known(arguments: argparse.Namespace, url: str) -> _names.Name:
    """Return the name of the kind that is known on the server; a semaphore, if neither is."""
    kinds = [arguments.kind] if arguments.kind else _KINDS
    found = [(await _names.named(url, arguments.prefix, arguments.name, kind))[0] for kind in kinds]
    known = [name for name in found if name.limit or name.in_use]
    if len(known) > 1:
        name = _arguments.masked(arguments.name)
        raise Unusable(f"{name!r} is of several kinds ({', '.join(kinds)}): say which by --kind")
    return (known or found)[0]
