"""`aiolocks demo`: show the promises in five short chapters, then judge them by the recorded events."""

import argparse
import asyncio
import os
import textwrap
import time
from typing import TYPE_CHECKING

from .._connect import connect
from .._screen import WIDTH, Line, Screen
from ._chapters import CHAPTERS, judge
from ._checks import Verdict
from ._crew import crew_for
from ._events import Log
from ._stage import Stage
from ._timeline import legend

if TYPE_CHECKING:
    from .._arguments import Commands


def register(commands: "Commands") -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "demo",
        help="see the locks at work, in 20 seconds",
        description="See the locks at work: five chapters of at most 20 seconds in all, then a verdict per property, "
        "judged from the recorded events. The exit status is 1 when one fails, 2 when the server cannot be used.",
    )
    parser.add_argument(
        "--url",
        default="memory://",
        help="redis://HOST:PORT, rediss:// or unix:// for a real server, with workers in separate processes; "
        "the default memory:// needs no server and runs in one process",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    screen = Screen()
    judged = asyncio.run(_play(screen, arguments.url))
    return 0 if all(verdict.ok for verdict in judged) else 1


async def _play(screen: Screen, url: str) -> list[Verdict]:
    # On a busy machine asyncio's debug mode would print a warning for each slow step.
    asyncio.get_running_loop().slow_callback_duration = 60
    began = time.monotonic()
    run = f"demo-{os.urandom(4).hex()}"
    async with connect(url, run) as server:
        log = Log()
        async with crew_for(server, log) as crew:
            screen.write(*_opening(server.place, crew.about), *legend(screen.glyphs))
            stage = Stage(screen, log, crew, server, run, began)
            for chapter in CHAPTERS:
                await stage.play(chapter)
        judged = judge(stage)
        await stage.tidy(CHAPTERS)
    screen.write(*_closing(judged, len(log.in_order()), time.monotonic() - began, late=stage.late))
    return judged


def _opening(place: str, about: str) -> list[Line]:
    who: list[Line] = [[(line, "dim")] for line in textwrap.wrap(about, WIDTH)]
    return [[("aiolocks demo", "bold"), (f" on {place}", "")], *who, []]


def _closing(judged: list[Verdict], records: int, seconds: float, *, late: bool) -> list[Line]:
    failed = sum(not verdict.ok for verdict in judged)
    width = max(len(verdict.title) for verdict in judged)
    lines: list[Line] = [[], [("Verdicts", "bold"), (f", from {records} recorded events", "")], []]
    for verdict in judged:
        mark = ("   ok    ", "bold green") if verdict.ok else ("   FAILED", "bold red")
        first, *rest = textwrap.wrap(verdict.figure, WIDTH - width - 13)
        lines.append([mark, (f"  {verdict.title:{width}}  ", "bold"), (first, "")])
        lines += [[(" " * (width + 13) + more, "")] for more in rest]
    end = f"All {len(judged)} hold" if not failed else f"{failed} of {len(judged)} failed"
    style = "bold green" if not failed else "bold red"
    hint = " Some events came too late: was this machine too busy?" if failed and late else ""
    return [*lines, [], [(end, style), (f", after {seconds:.1f} s.{hint}", "")]]
