"""A worker in a separate process.

Its standard input has the URL (which must not show in lists of processes) and then one order per line. Each record is
one write to a pipe, which keeps it whole. When the input ends with the demo, the worker ends too.
"""

import asyncio
import contextlib
import os
import sys

from ._events import END_BODY, READY, Event, Order, to_line
from ._worker import Worker, feel_pulse

PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from aiolocks.cli._demo._process import main; main(sys.argv[1])"
"""Program for Python. Its arguments are the worker's name and our module path, so that it runs the same code."""


def main(name: str) -> None:
    """Run the worker *name* until standard input ends."""
    asyncio.run(_live(name))


def _record(event: Event) -> None:
    with contextlib.suppress(BrokenPipeError):  # the demo has ended, so this process ends too
        os.write(sys.stdout.fileno(), to_line(event))


async def _live(name: str) -> None:
    loop = asyncio.get_running_loop()
    loop.slow_callback_duration = 60  # no warnings of a busy machine in debug mode
    orders = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    url = (await orders.readline()).decode().strip()
    worker = Worker(name, url, _record)
    pulse = asyncio.create_task(feel_pulse(name, _record))
    _record(Event.now(name, READY))
    try:
        while line := await orders.readline():
            if line == END_BODY:
                worker.end_body()
            else:
                worker.begin(Order.from_line(line))
    finally:
        pulse.cancel()
        await worker.close()
        transport.close()
