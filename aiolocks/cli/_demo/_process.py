"""A worker in a process of its own.

Its standard input brings the URL (which must not be seen in the list of processes) and then one order per line; each
record leaves by one write, which a pipe keeps whole. The input ends with the demo, and then the worker ends too.
"""

import asyncio
import contextlib
import os
import sys

from ._events import LEAVE, READY, Event, Order
from ._worker import Worker, feel_pulse

PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from aiolocks.cli._demo._process import main; main(sys.argv[1])"
"""What Python is to run, with the worker's name and our module path, so that the worker runs the same code."""


def main(name: str) -> None:
    """Be the worker *name* until standard input ends."""
    asyncio.run(_live(name))


def _record(event: Event) -> None:
    with contextlib.suppress(BrokenPipeError):  # the demo is gone, and so are we in a moment
        os.write(sys.stdout.fileno(), event.to_line())


async def _live(name: str) -> None:
    loop = asyncio.get_running_loop()
    loop.slow_callback_duration = 60  # a busy machine is no fault of ours: nothing to warn of in debug mode
    orders = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    url = (await orders.readline()).decode().strip()
    worker = Worker(name, url, _record)
    pulse = asyncio.create_task(feel_pulse(name, _record))
    _record(Event.now(name, READY))
    try:
        while line := await orders.readline():
            if line == LEAVE:
                worker.leave()
            else:
                worker.begin(Order.from_line(line))
    finally:
        pulse.cancel()
        await worker.close()
        transport.close()
