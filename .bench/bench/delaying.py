"""A network that takes its time, as a process: `python -m bench.delaying`, and a line of JSON as orders.

It prints the port that it listens on, and forwards the data that comes there to another port: in order, each piece
after the same delay, to within some 20 µs. That is finer than an event loop's timers, which are a millisecond apart.
As it is a process of its own, it takes no time from the loop that is measured.
"""

import asyncio
import json
import socket
import sys
import time
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from select import select
from urllib.parse import urlsplit

from bench.processes import REPOSITORY, environment

_HOST = "127.0.0.1"
_SPIN = 150e-6
"""Seconds before a due time in which it does not sleep, because Linux may wake it 50 µs late or more."""
_CHUNK = 1 << 16


@asynccontextmanager
async def delayed(url: str, one_way: float) -> AsyncIterator[str]:
    """Yield a URL at which the server *url* answers late, by *one_way* seconds in each direction."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.delaying",
        stdin=PIPE, stdout=PIPE, cwd=REPOSITORY, env=environment(),
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        where = urlsplit(url)
        orders = {"host": where.hostname, "port": where.port, "one_way": one_way}
        process.stdin.write(json.dumps(orders).encode() + b"\n")
        port = int(await process.stdout.readline())
        yield f"redis://{_HOST}:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class _Way:
    """One direction of a connection: what was read, and when each piece of it is to be sent."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        self.due: deque[tuple[float, bytes]] = deque()
        for end in (source, target):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _forward(listener: socket.socket, upstream: tuple[str, int], one_way: float) -> None:
    """Forward until this process is killed."""
    ways: dict[socket.socket, _Way] = {}
    clock = time.monotonic
    while True:
        next_due = min((way.due[0][0] for way in ways.values() if way.due), default=None)
        sleep = None if next_due is None else max(next_due - clock() - _SPIN, 0.0)
        readable = select([listener, *ways], [], [], sleep)[0]
        read_at = clock()
        for source in readable:
            if source is listener:
                client, server = listener.accept()[0], socket.create_connection(upstream)
                ways |= {client: _Way(client, server), server: _Way(server, client)}
            elif source in ways:  # otherwise its other end was closed just now
                if data := _read(source):
                    ways[source].due.append((read_at + one_way, data))
                else:
                    _close(ways, source)
        for way in list(ways.values()):
            while way.due and way.due[0][0] <= clock():
                _send(way)


def _read(source: socket.socket) -> bytes:
    try:
        return source.recv(_CHUNK)
    except OSError:
        return b""


def _send(way: _Way) -> None:
    data = way.due.popleft()[1]
    try:
        way.target.sendall(data)
    except OSError:
        way.due.clear()  # its end is noticed when it is read next


def _close(ways: dict[socket.socket, _Way], source: socket.socket) -> None:
    target = ways.pop(source).target
    ways.pop(target, None)
    source.close()
    target.close()


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    with socket.create_server((_HOST, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        _forward(listener, (orders["host"], orders["port"]), orders["one_way"])


if __name__ == "__main__":
    main()
