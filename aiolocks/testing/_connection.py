"""One client's connection through the fault proxy: two sockets, and the messages between them.

Faults are checked when a message comes and again when it is passed on, so they also hit messages in transit.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar, cast, final

from ._resp import Pairing, Scanner, starts_replication, verb

Loss = Literal["reset", "black_hole"]
"""Way to lose a message: reset the connection, or keep it open and deliver nothing more."""

Way = Literal["requests", "replies"]
"""One direction."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER on, with 0 seconds: a close then sends RST instead of FIN."""


@dataclass(slots=True)
class Faults:
    """The present faults of all connections of one proxy, and the counted requests."""

    delay_requests: float = 0.0
    delay_replies: float = 0.0
    black_hole: bool | Way = False
    holding: bool = False
    requests: int = 0
    on_request: Callable[[bytes], object] | None = None
    orders: list[tuple[Way, bytes | None, Loss | float]] = field(
        default_factory=list[tuple[Way, bytes | None, Loss | float]]
    )

    def count(self, request: bytes) -> None:
        """Count a request and call the observer, which may change any fault."""
        self.requests += 1
        if self.on_request is not None:
            self.on_request(request)

    def swallows(self, way: Way) -> bool:
        """Whether everything in this direction is lost now."""
        return self.black_hole is True or self.black_hole == way

    def fate(self, way: Way, request: bytes) -> Loss | float:
        """Return the loss or delay for *request* or its reply, and remove the order that says so."""
        for order in self.orders:
            where, match, fate = order
            if where == way and (match is None or match in request):
                self.orders.remove(order)
                return fate
        return self.delay_requests if way == "requests" else self.delay_replies


Item = TypeVar("Item")


@final
class Connection:
    """Passes messages between one client and Redis, as far as the faults allow."""

    def __init__(self, faults: Faults, on_gone: Callable[["Connection"], None]) -> None:
        self.client = _End(self._on_client_data, self.settle)
        self._server = _End(self._on_server_data, self.settle)
        self._requests: _Direction[bytes] = _Direction(self._send_to_server, self.settle)
        self._replies: _Direction[tuple[bytes, Loss | None]] = _Direction(self._send_to_client, self.settle)
        self._request_scanner = Scanner()
        self._reply_scanner = Scanner()
        self._pairing = Pairing()
        self._faults = faults
        self._on_gone = on_gone
        self._dead: set[Way] = set()  # directions that lost something: TCP delivers in order, so nothing may follow
        self._deaf = False  # a request was lost, so no later one arrives; earlier ones do
        self.verbs: set[bytes] = set()
        """The commands that the client has sent, in lower case."""
        self._replicating = False

    async def open(self, accepted: socket.socket, host: str, port: int, path: str | None) -> None:
        """Take over an accepted socket and connect to Redis. If that fails, reset the client."""
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: self.client, accepted)
            if path is None:
                await loop.create_connection(lambda: self._server, host, port)
            else:
                await loop.create_unix_connection(lambda: self._server, path)
        except OSError:
            self.client.cut()
        finally:
            self.client.end_unless_opened()
            self._server.end_unless_opened()
            self.settle()

    def settle(self) -> None:
        """Deliver messages that are due, then pass on a close. A black hole swallows closes too."""
        if self._server.opened and not self._faults.holding:
            self._requests.flush()
        self._replies.flush()
        if self.client.gone and not self._requests and not self._faults.swallows("requests"):
            # With unread replies, close() would reset, and Redis might discard requests that it has not read.
            self._server.finish()
        if self._server.gone and not self._replies and not self._faults.swallows("replies"):
            self.client.close()
        if self.client.gone and self._server.gone:
            self._requests.clear()
            self._replies.clear()
            self._on_gone(self)

    def abandon(self) -> None:
        """Reset both ends and deliver nothing more."""
        self._dead = {"requests", "replies"}
        self.client.cut()
        self._server.cut()
        self.settle()

    def _swallows(self, way: Way) -> bool:
        if self._faults.swallows(way):
            self._dead.add(way)
        return way in self._dead

    def _on_client_data(self, chunk: bytes) -> None:
        self._swallows("requests")
        for request in self._request_scanner.feed(chunk):
            self._faults.count(request)
            self.verbs.add(verb(request))
            if self._deaf or self._swallows("requests"):
                continue
            fate = self._faults.fate("requests", request)
            if isinstance(fate, str):
                self._deaf = True
                if fate == "reset":
                    self.client.cut()
            else:
                self._requests.push(request, fate)
        self.settle()

    def _send_to_server(self, requests: list[bytes]) -> None:
        if self._swallows("requests"):
            return
        for request in requests:
            if starts_replication(request):
                self._replicating = True
                self._reply_scanner.stop_parsing()
            if not self._replicating:
                self._pairing.ask(request)
        self._server.write(b"".join(requests))

    def _on_server_data(self, chunk: bytes) -> None:
        if self._swallows("replies"):
            return
        for reply in self._reply_scanner.feed(chunk):
            request = None if self._replicating else self._pairing.answer(reply)
            fate = self._faults.delay_replies if request is None else self._faults.fate("replies", request)
            if isinstance(fate, str):
                self._replies.push((reply, fate), self._faults.delay_replies)
            else:
                self._replies.push((reply, None), fate)
        self.settle()

    def _send_to_client(self, replies: list[tuple[bytes, Loss | None]]) -> None:
        if self._swallows("replies"):
            return
        intact: list[bytes] = []
        loss = None
        for reply, loss in replies:
            if loss is not None:
                break
            intact.append(reply)
        self.client.write(b"".join(intact))
        if loss == "reset":
            self.client.cut()
        elif loss == "black_hole":
            self._dead = {"requests", "replies"}


@final
class _Direction(Generic[Item]):
    """The messages in transit in one direction, delivered in order. Each has the delay that applied when it came."""

    def __init__(self, deliver: Callable[[list[Item]], None], wake: Callable[[], None]) -> None:
        self._deliver = deliver
        self._wake = wake
        self._queue: deque[tuple[float, Item]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def push(self, item: Item, delay: float) -> None:
        self._queue.append((asyncio.get_running_loop().time() + delay, item))

    def flush(self) -> None:
        """Deliver the messages that are due, and call `wake` when the next one is."""
        loop = asyncio.get_running_loop()
        items: list[Item] = []
        while self._queue and self._queue[0][0] <= loop.time():
            items.append(self._queue.popleft()[1])
        if items:
            self._deliver(items)
        if self._queue and self._timer is None:
            self._timer = loop.call_at(self._queue[0][0], self._ring)

    def clear(self) -> None:
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._wake()


@final
class _End(asyncio.Protocol):
    """One of the two sockets. It reports its data and its end once."""

    def __init__(self, on_data: Callable[[bytes], None], on_gone: Callable[[], None]) -> None:
        self.gone = False
        self._on_data = on_data
        self._on_gone = on_gone
        self._transport: asyncio.Transport | None = None
        self._finished = False

    @property
    def opened(self) -> bool:
        return self._transport is not None

    @property
    def open(self) -> bool:
        return self.opened and not self.gone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.gone:
            self.cut()

    def data_received(self, data: bytes) -> None:
        self._on_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._on_gone()

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def finish(self) -> None:
        """Send FIN: Redis then reads the earlier requests, and closes."""
        if self._transport is not None and not self._transport.is_closing() and not self._finished:
            self._finished = True
            self._transport.write_eof()

    def close(self) -> None:
        """Close after sending everything that was written."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Close now, with RST."""
        if self._transport is None:
            self.gone = True
            return
        if not self.gone and not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def end_unless_opened(self) -> None:
        """Treat it as gone if connecting failed."""
        self.gone = self.gone or not self.opened
