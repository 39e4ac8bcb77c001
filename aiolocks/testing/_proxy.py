"""A TCP proxy in front of Redis that delays, loses and holds messages back, and cuts connections.

It passes on whole RESP messages, so a fault hits exactly one request or reply.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Self, final

from .._core.options import Duration, check_seconds
from ._connection import Connection, Faults, Loss, Way

_HOST = "127.0.0.1"


@final
class FaultProxy:
    """Stands between clients and one Redis, and injects the faults that the test orders.

    Clients connect to `url`. *path* is a unix socket and takes precedence over *host* and *port*. All controls may be
    changed at any time; delays are seconds or a timedelta. It supports RESP 2 and 3 without TLS. The end of the block
    resets all connections.

    ::

        async with FaultProxy(port=6379) as proxy:
            redis = Redis.from_url(proxy.url)
            proxy.drop_next_reply(b"SET")

    A request that a client sent before it disconnected still reaches Redis, however late, as in real networks. So a
    request can arrive after its undo.

    Attributes:
        refuse: Whether to close new connections at once.
        connections_total: Number of connections, including refused ones.
    """

    def __init__(self, host: str = _HOST, port: int = 6379, *, path: str | None = None) -> None:
        self.refuse = False
        self.connections_total = 0
        self._faults = Faults()
        self._upstream = (host, port, path)
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._one_less = asyncio.Event()

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1 that clients connect to."""
        if self._listener is None:
            raise RuntimeError("the proxy listens only inside its `async with` block")
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"redis://{_HOST}:{self.port}"

    @property
    def connections_open(self) -> int:
        """Number of connected clients."""
        return sum(connection.client.open for connection in self._connections)

    @property
    def requests(self) -> int:
        """Number of requests from clients, including lost ones."""
        return self._faults.requests

    @property
    def on_request(self) -> Callable[[bytes], object] | None:
        """Function called with the bytes of each request from a client, before any fault is chosen for it."""
        return self._faults.on_request

    @on_request.setter
    def on_request(self, observer: Callable[[bytes], object] | None) -> None:
        self._faults.on_request = observer

    @property
    def delay_requests(self) -> float:
        """Delay in seconds for each request from now on. Order is kept."""
        return self._faults.delay_requests

    @delay_requests.setter
    def delay_requests(self, delay: Duration) -> None:  # pyright: ignore[reportPropertyTypeMismatch]  # takes more
        self._faults.delay_requests = check_seconds("delay_requests", delay)

    @property
    def delay_replies(self) -> float:
        """Delay in seconds for each reply from now on. Order is kept."""
        return self._faults.delay_replies

    @delay_replies.setter
    def delay_replies(self, delay: Duration) -> None:  # pyright: ignore[reportPropertyTypeMismatch]  # takes more
        self._faults.delay_replies = check_seconds("delay_replies", delay)

    @property
    def black_hole(self) -> bool | Way:
        """While true, connections stay open but deliver nothing, in both directions or only "requests" or "replies".

        Closes are swallowed too. A connection that lost something delivers nothing more in that direction, even after
        this is False again, because TCP delivers in order or not at all. Other connections continue.
        """
        return self._faults.black_hole

    @black_hole.setter
    def black_hole(self, what: bool | Way) -> None:
        if what not in (True, False, "requests", "replies"):
            raise ValueError(f"black_hole must be True, False, 'requests' or 'replies', not {what!r}")
        self._faults.black_hole = what
        self._settle()

    def hold_requests(self) -> None:
        """Hold back all requests from now on, including delayed ones."""
        self._faults.holding = True

    def release_requests(self) -> None:
        """Deliver the requests that were held back, even of clients that have disconnected."""
        self._faults.holding = False
        self._settle()

    def drop_next_reply(self, match: bytes | None = None, how: Loss = "reset") -> None:
        """Lose the next reply to a request whose raw bytes contain *match*. The request does reach Redis.

        Args:
            match: Part of the request as sent (a verb, a key); None matches any request.
            how: "reset" cuts the connection (RST). "black_hole" keeps it open, but nothing more is delivered.
        """
        self._order("replies", match, how)

    def drop_next_request(self, match: bytes | None = None, how: Loss = "reset") -> None:
        """Lose the next request whose raw bytes contain *match*, and all later requests on that connection.

        Args:
            match: The same as for `drop_next_reply`.
            how: "reset" cuts the connection (RST). "black_hole" keeps it open, and replies are still delivered.
        """
        self._order("requests", match, how)

    def delay_next_reply(self, delay: Duration, match: bytes | None = None) -> None:
        """Delay the next reply to a request that contains *match* by *delay*, and the replies after it."""
        self._faults.orders.append(("replies", match, check_seconds("delay", delay)))

    def delay_next_request(self, delay: Duration, match: bytes | None = None) -> None:
        """Delay the next request that contains *match* by *delay*, and the requests after it."""
        self._faults.orders.append(("requests", match, check_seconds("delay", delay)))

    def cut_all(self, verb: bytes | None = None) -> None:
        """Reset (RST) every client's connection now. Requests that were sent before still reach Redis.

        Args:
            verb: Reset only connections over which this command was sent, such as b"SUBSCRIBE".
        """
        for connection in list(self._connections):
            if verb is None or verb.lower() in connection.verbs:
                connection.client.cut()

    def _order(self, way: Way, match: bytes | None, how: Loss) -> None:
        if how not in ("reset", "black_hole"):
            raise ValueError(f"how must be 'reset' or 'black_hole', not {how!r}")
        self._faults.orders.append((way, match, how))

    async def __aenter__(self) -> Self:
        self._listener = socket.create_server((_HOST, 0), backlog=512)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in list(self._connections):
            connection.abandon()
        while self._connections:  # an aborted transport closes its socket in a later iteration of the loop
            self._one_less.clear()
            await self._one_less.wait()

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        self.connections_total += 1
        if self.refuse:
            accepted.close()
            return
        accepted.setblocking(False)
        connection = Connection(self._faults, self._discard)
        self._connections.add(connection)
        task = asyncio.get_running_loop().create_task(connection.open(accepted, *self._upstream))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _discard(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._one_less.set()

    def _settle(self) -> None:
        for connection in list(self._connections):
            connection.settle()
