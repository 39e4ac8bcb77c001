"""Commands of `aiolocks` in processes of their own, and what a command said."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from aiolocks.cli import main
from tests.support.children import family
from tests.support.workers import environment

Capsys = pytest.CaptureFixture[str]


@dataclass(frozen=True, slots=True)
class Said:
    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


async def at(url: str, capsys: Capsys, *arguments: str) -> Said:
    """Run `aiolocks ARGUMENTS` at *url* in a thread."""
    return Said(await asyncio.to_thread(main, [*arguments, "--url", url]), *capsys.readouterr())


Command = Callable[..., Awaitable[Said]]

Process = subprocess.Popen[str]
Start = Callable[..., Process]


@contextmanager
def running(url: str, *arguments: str, before: str = "") -> Iterator[Process]:
    """Run the command `aiolocks run` with the server at *url*, in a session of its own.

    It takes the place of a shell that has run the line *before*.
    """
    command = ("sh", "-c", f'{before}exec "$@"', "sh", sys.executable, "-W", "error", "-m", "aiolocks", "run")
    streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with family(*command, *arguments, env=environment({"AIOLOCKS_URL": url}), **streams) as process:
        yield process
