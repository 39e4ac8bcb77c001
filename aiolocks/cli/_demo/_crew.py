"""The workers: separate processes on a real server, tasks of this process on the in-memory one.

Both kinds follow the same orders and write the same records. One worker, `MORTAL`, can be killed.
"""

import asyncio
import contextlib
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol, final

from .._arguments import Unusable
from .._connect import Server
from ._events import DIED, END_BODY, READY, Event, Log, Order, to_line
from ._process import PROGRAM
from ._worker import Worker, feel_pulse

WORKERS = ("ada", "ben", "cleo", "dan", "eve", "finn")
MORTAL = "gus"

_START_TIMEOUT = 10.0
_END_TIMEOUT = 2.0
"""Timeouts in seconds for a process to start, and to end by itself."""

HOST = "demo"
"""The name of the demo itself in the records."""


class Crew(Protocol):
    """The workers, as chapters use them."""

    about: str
    """A description of the workers in one line."""

    def begin(self, worker: str, order: Order) -> None:
        """Let *worker* carry out *order*."""

    def end_body(self, worker: str) -> None:
        """Let *worker* end its body."""

    async def kill(self, name: str) -> None:
        """Kill `MORTAL` while it holds *name*, and record how."""


@asynccontextmanager
async def crew_for(server: Server, log: Log) -> AsyncGenerator[Crew]:
    """Yield workers that are ready, and end them all afterwards.

    Raises:
        Unusable: A worker's process does not start.
    """
    pulse = asyncio.create_task(feel_pulse(HOST, log.add))
    async with AsyncExitStack() as stack:
        stack.callback(pulse.cancel)
        if server.in_process:
            tasks = Tasks(server.url, log)
            stack.push_async_callback(tasks.close)
            yield tasks
        else:
            processes = Processes(log)
            stack.push_async_callback(processes.close)
            await processes.start(server.url)
            yield processes


@final
class Tasks:
    """Workers in this process, each with its own client. `MORTAL` has a thread with its own event loop."""

    def __init__(self, url: str, log: Log) -> None:
        self._log = log
        self._workers = {name: Worker(name, url, log.add) for name in WORKERS}
        self._thread = Thread(url, log)
        self.about = f"{len(WORKERS)} workers in this process, each with its own client; {MORTAL} in its own thread"

    def begin(self, worker: str, order: Order) -> None:
        if worker == MORTAL:
            self._thread.begin(order)
        else:
            self._workers[worker].begin(order)

    def end_body(self, worker: str) -> None:
        self._workers[worker].end_body()

    async def kill(self, name: str) -> None:
        deed = "dies (simulated: its thread is frozen; with --url, a real SIGKILL)"
        self._log.add(Event.now(MORTAL, DIED, name, note=deed))
        self._thread.freeze()

    async def close(self) -> None:
        for worker in self._workers.values():
            await worker.close()
        await asyncio.to_thread(self._thread.close)


@final
class Thread:
    """A worker that dies as abruptly as a thread can: its event loop is frozen.

    So its lease is neither renewed nor released, and it records nothing more. At the end it is thawed for cleanup.
    """

    def __init__(self, url: str, log: Log) -> None:
        self._url = url
        self._log = log
        self._loop = asyncio.new_event_loop()
        self._loop.slow_callback_duration = 60
        self._thawed = threading.Event()
        self._dead = False
        self._end = asyncio.Event()
        self._order: Order | None = None
        self._thread = threading.Thread(target=self._run, name=MORTAL, daemon=True)

    def begin(self, order: Order) -> None:
        self._order = order
        self._thread.start()

    def freeze(self) -> None:
        self._dead = True
        self._loop.call_soon_threadsafe(self._thawed.wait)

    def close(self) -> None:
        self._thawed.set()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        if self._order is not None:
            worker = Worker(MORTAL, self._url, self._record)
            worker.begin(self._order)
            await self._end.wait()
            await worker.close()

    def _record(self, event: Event) -> None:
        if not self._dead:
            self._log.add(event)


@final
class Processes:
    """Workers in processes of their own."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._processes: dict[str, Process] = {}
        self._readers: list[asyncio.Task[None]] = []
        self.about = ""

    async def start(self, url: str) -> None:
        await asyncio.gather(*(self._start(name, url) for name in (*WORKERS, MORTAL)))
        for name in self._processes:
            if not await self._log.until(name, READY, "", 1, _START_TIMEOUT):
                raise Unusable(f"a worker process did not start within {_START_TIMEOUT:g} s: try again")
        self.about = "processes: " + "  ".join(f"{name}={self._processes[name].pid}" for name in (*WORKERS, MORTAL))

    async def _start(self, name: str, url: str) -> None:
        # A new session, so that Ctrl-C reaches only the demo, which then ends the workers.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, name, *sys.path,
            stdin=PIPE, stdout=PIPE, start_new_session=True,
        )  # fmt: skip
        self._processes[name] = process
        self._readers.append(asyncio.create_task(self._read(process)))
        self._send(name, url.encode() + b"\n")

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._log.add(Event.from_line(line))

    def begin(self, worker: str, order: Order) -> None:
        self._send(worker, to_line(order))

    def end_body(self, worker: str) -> None:
        self._send(worker, END_BODY)

    def _send(self, worker: str, line: bytes) -> None:
        stdin = self._processes[worker].stdin
        assert stdin is not None
        stdin.write(line)

    async def kill(self, name: str) -> None:
        process = self._processes[MORTAL]
        deed = f"dies: SIGKILL to process {process.pid}"
        self._log.add(Event.now(MORTAL, DIED, name, note=deed))
        process.kill()
        await process.wait()

    async def close(self) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        ends = [asyncio.create_task(process.wait()) for process in self._processes.values()]
        try:
            if ends:
                await asyncio.wait(ends, timeout=_END_TIMEOUT)
        finally:
            for process in self._processes.values():
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
        await asyncio.gather(*ends, *self._readers)
