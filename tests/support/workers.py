"""Worker processes for tests: start one with a program, hear what it says, stop it, kill it.

What workers did is a history: each has a `Recorder` of `aiolocks.testing` on one file, and its checkers judge that.
Programs stand beside their tests, except the one that only holds (`holding`).
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import final

from aiolocks.testing import Recorder
from tests.support.children import family

ACQUIRED, RELEASED, LOST, KILLED = "acquired", "released", "lost", "killed"
"""Events of a history. A worker records `acquired` after it was granted, and `released` or `lost` before another
process can know of it; its parent records `killed` when the worker is dead."""

REPOSITORY = Path(__file__).parents[2]


@final
class Worker:
    """A process that says lines on its standard output."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.pid = process.pid

    def line(self) -> str:
        """Wait for the next line that it says; an empty one if it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    async def says(self) -> str:
        """Do as `line`, while the loop goes on."""
        return await asyncio.to_thread(self.line)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit status, below zero if a signal ended it."""
        return self.process.wait(timeout)

    async def ends(self, timeout: float | None = None) -> int:
        """Do as `wait`, while the loop goes on."""
        return await asyncio.to_thread(self.wait, timeout)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """Stop it (SIGSTOP), and return once it stands still."""
        self.signal(signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self, history: Recorder | None = None) -> None:
        """Kill it (SIGKILL), and record that once it is dead: before that it may still act."""
        self.process.kill()
        self.process.wait()
        if history is not None:
            history.record(KILLED, pid=self.pid)


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a process needs in its environment to import this checkout's packages, and *env*."""
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@contextmanager
def spawn(*arguments: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> Iterator[Worker]:
    """Run this Python with *arguments* (a script and its own, or `-m` and a module) in the repository's directory.

    On leaving, it and all that it forked are killed, stopped ones too.
    """
    command = (sys.executable, *arguments)
    with family(*command, stdin=subprocess.DEVNULL, cwd=REPOSITORY, env=environment(env)) as process:
        yield Worker(process)


HOLDER = """
import asyncio, sys
from aiolocks import LockManager

async def hold(names, acquirable, *more):
    async with eval(acquirable, names) as lease:
        print("holds", flush=True)
        await (hold({**names, "lease": lease}, *more) if more else asyncio.Event().wait())

async def main(url, *acquirables):
    async with LockManager.from_url(url) as locks:
        await hold({"locks": locks}, *acquirables)

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def holding(url: str, *acquirables: str) -> Iterator[Worker]:
    """Let another process hold what *acquirables* make, each inside the one before, and say "holds" for each.

    They are Python expressions: `locks` is a manager, and `lease` the lease of the one before.
    """
    with spawn("-c", HOLDER, url, *acquirables) as worker:
        yield worker
