"""`aiolocks bench`: measure how fast locks are on a server, when they are free and when many tasks wait for one."""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from .._primitives.lock import Lock
from . import _arguments
from ._arguments import Unusable
from ._connect import answering, delete_keys, manager_of, ping, place_of, reason
from ._screen import WIDTH, Line, Screen

if TYPE_CHECKING:
    from ._arguments import Commands

_MAX_SECONDS = 60.0
_MAX_TASKS = 1000
_BAR = 24


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of one situation."""

    situation: str
    pairs_per_second: float
    """Pairs of a grant and a release."""
    median_s: float
    """Median time from the request to the grant."""
    p99_s: float


def register(commands: "Commands") -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "bench",
        help="measure how fast locks are on a server",
        description="Measure how fast locks are on a server, from one process: free locks in one task, free locks in "
        "many tasks, and one lock for which all tasks wait. It loads the server while it runs.",
    )
    _arguments.add_url(parser)
    _arguments.add_prefix(parser)
    about = "seconds per situation, 2 if left out"
    parser.add_argument("--seconds", type=_arguments.seconds, default=2.0, metavar="S", help=about)
    about = "number of tasks, 100 if left out, at most 1,000"
    parser.add_argument("--tasks", type=_arguments.count, default=100, metavar="N", help=about)
    _arguments.add_json(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if not 0 < arguments.seconds <= _MAX_SECONDS or arguments.tasks > _MAX_TASKS:
        raise Unusable(f"--seconds is more than 0 and at most {_MAX_SECONDS:g}, --tasks at most {_MAX_TASKS}")
    url = _arguments.url_of(arguments)
    place = place_of(url) if not url.startswith("memory:") else url.partition("//")[0] + "//"
    figures = asyncio.run(_measure(arguments, url, place))
    if arguments.json:
        report = {"server": place, "tasks": arguments.tasks, "figures": [asdict(figure) for figure in figures]}
        print(json.dumps(report, indent=2))
    else:
        Screen().write(*_lines(place, figures))
    return 0


async def _measure(arguments: argparse.Namespace, url: str, place: str) -> list[Figure]:
    if not url.startswith("memory:"):
        async with answering(url, place, ", or correct --url") as client:
            await ping(client)
    name, tasks = f"bench-{os.urandom(6).hex()}", arguments.tasks
    names = [f"{name}-{number}" for number in range(tasks)]
    async with manager_of(url) as locks:
        each = [locks.lock(one, prefix=arguments.prefix) for one in names]
        try:
            await _situation("", each[:1], 0.1)  # connects, and loads the scripts
            return [
                await _situation("free, one task", each[:1], arguments.seconds),
                await _situation(f"free, {tasks} tasks", each, arguments.seconds),
                await _situation(f"one lock, {tasks} waiting", each[:1] * tasks, arguments.seconds),
            ]
        except (RedisError, OSError) as error:
            raise Unusable(f"Redis at {place} cannot be used: {reason(error, url)}") from None
        finally:
            with suppress(RedisError, OSError):
                for one in names:
                    await delete_keys(locks.client, one, arguments.prefix, ("lock",))


async def _situation(situation: str, locks: Sequence[Lock], seconds: float) -> Figure:
    """Acquire each of *locks* in a loop, in a task of its own."""
    waits: list[float] = []
    began = time.perf_counter()

    async def turn(lock: Lock) -> None:
        while (asked := time.perf_counter()) < began + seconds or not waits:  # the report needs one
            async with lock:
                waits.append(time.perf_counter() - asked)

    await asyncio.gather(*map(turn, locks))
    took = time.perf_counter() - began
    waits.sort()
    return Figure(situation, len(waits) / took, median(waits), waits[int(len(waits) * 0.99)])


def _lines(place: str, figures: Sequence[Figure]) -> list[Line]:
    most = max(figure.pairs_per_second for figure in figures)
    glyph = Screen().glyphs.holds
    lines: list[Line] = [[("aiolocks bench", "bold"), (f" on {place}, from this process", "")], []]
    head = f"{'':24} {'pairs/s':>9}  {'':{_BAR}}"
    lines.append([(f"{head[: WIDTH - 20]}{'median':>9} {'99 %':>9}", "dim")])
    for one in figures:
        bar = glyph * max(round(_BAR * one.pairs_per_second / most), 1)
        lines.append(
            [
                (f"{one.situation:24.24} {one.pairs_per_second:9,.0f}  ", ""),
                (f"{bar:{_BAR}}", "cyan"),
                (f"{_time(one.median_s):>9} {_time(one.p99_s):>9}", ""),
            ]
        )
    return lines


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
