"""One connection to Redis that every task shares: requests leave in order, and replies come back in that order.

redis-py opens the connection (address, TLS, credentials, handshake); only the bytes after the handshake are ours. No
task, which `asyncio.run` would cancel, runs while the link is idle, so cancelled tasks can still release their leases.
"""

import asyncio
import contextlib
import os
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, final

import hiredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError, ResponseError

from .._core.background import background
from .._core.replies import UNREADABLE, unreadable, unreadable_protocol
from .._core.untyped import RawConnection, untyped

if TYPE_CHECKING:
    from .pipeline import PendingCall

Receiver = Callable[[object], None]
"""Gets the reply, or the exception in its place."""

Heard = Callable[[Receiver], None]

_MORE = object()
"""What hiredis returns while a reply is incomplete."""

_READ = 65_536
"""Bytes read at once, into a buffer that the link keeps. asyncio would allocate 256 KiB for each reply."""

_TOGETHER = 64
"""Maximum number of commands in one write. With more, the server would wait for us while we wait for it."""

NEVER = Retry(NoBackoff(), 0)

_LIBRARY = ("driver_info", "lib_name", "lib_version")
"""Attributes of redis-py's connections that say which library connects, in its older and newer versions."""


class ConnectionCancelled(RedisConnectionError):
    """The task that connects or reads was cancelled, as all tasks are when the loop ends."""


class Endpoint:
    """Where connections lead to, as the client of one event loop connects."""

    fails_over = False
    """Whether another server takes over when this one is gone. An outage is retried then."""
    address: tuple[str, int]
    """The host and port of a node of a Cluster; no other endpoint has it."""

    async def connect(self) -> RawConnection:
        """Return a new connection of redis-py, connected. The caller bounds the time."""
        raise NotImplementedError

    def opened(self, connection: RawConnection, link: "Connection") -> None:
        """Called when *connection* has become *link*, so that a failover can close it."""

    def unreachable(self) -> None:
        """Called when connecting failed (not when it was cancelled)."""

    def retry(self) -> Retry:
        raise NotImplementedError

    def close(self) -> None:
        """Stop watching for failovers. A later `connect` starts again."""

    def detach_in_fork(self) -> None:
        """See `Connection.detach_in_fork`."""


class Connection:
    """A link to Redis: requests leave in order, and each reply goes to the receiver that has waited longest.

    Invariant: each receiver is called exactly once, with its reply or with the reason why the link was lost.
    """

    __slots__ = ("_on_heard", "_on_lost", "_on_push", "full", "library", "loaded", "lost", "receivers", "resent")

    library: tuple[tuple[bytes, bytes], ...]
    """Arguments for CLIENT SETINFO. It is sent with the first request, as redis-py's handshake would wait for it."""
    distant: bool
    """The server runs in another process."""

    def __init__(self, on_push: Receiver | None, on_lost: Callable[[Exception], None], on_heard: Heard) -> None:
        self.lost: Exception | None = None
        self.full = False
        """The other side does not read as fast as we write: hold back calls that can wait."""
        self.loaded: set[object] = set()
        """Scripts that were sent whole over this connection."""
        self.receivers: deque[Receiver] = deque()
        self.resent: set[PendingCall] = set()
        """Unanswered calls that were sent whole: perhaps a second time, behind calls that had left after the first."""
        self._on_push = on_push
        self._on_lost = on_lost
        self._on_heard = on_heard

    def send(self, packed: bytes, receiver: Receiver | None) -> None:
        """Write a command now. *receiver* is called with its reply, or with the reason why the link was lost."""
        raise NotImplementedError

    def close(self, reason: Exception | None = None) -> None:
        """Close without waiting. Each receiver gets the *reason*."""
        raise NotImplementedError

    def detach_in_fork(self) -> None:
        """In a forked child: give up this process's copy of the connection, unseen by the parent and the server."""

    def _refuse(self, receiver: Receiver | None) -> None:
        if receiver is not None:
            asyncio.get_running_loop().call_soon(receiver, self.lost)

    def _received(self, reply: object) -> None:
        if self.receivers and not isinstance(reply, hiredis.PushNotification):
            self.receivers.popleft()(reply)
        elif self._on_push is not None:  # a message, or a notice of maintenance or invalidation under RESP3
            try:
                self._on_push(reply)
            except UNREADABLE:
                self.close(unreadable("a subscription", reply))

    def _lose(self, reason: Exception) -> None:
        if self.lost is None:
            self.lost = reason
            receivers, self.receivers = self.receivers, deque()
            self._on_lost(reason)
            for receiver in receivers:
                receiver(reason)


@final
class StreamConnection(Connection, asyncio.BufferedProtocol):
    """A link over the socket or TLS stream of a connected redis-py connection."""

    def __init__(
        self, connection: RawConnection, on_push: Receiver | None, on_lost: Callable[[Exception], None],
        on_flow: Callable[[], None], on_heard: Heard,
    ) -> None:  # fmt: skip
        super().__init__(on_push, on_lost, on_heard)
        self._on_flow = on_flow
        self._loop = asyncio.get_running_loop()
        self._connection = connection  # its StreamWriter would close the transport if it were collected
        self._transport: asyncio.Transport = connection._writer.transport
        self._parser = untyped(hiredis).Reader(  # its stub knows neither what it takes nor what it returns
            protocolError=InvalidResponse, replyError=connection._parser.parse_error, notEnoughData=_MORE
        )
        self._parser.feed(bytes(connection._reader._buffer))
        self.distant = self._transport.get_extra_info("socket") is not None
        self._alone = False
        """A command has left by itself since the last reply."""
        self._written: list[bytes] | None = None
        self._read = memoryview(bytearray(_READ))  # a view, as asyncio's TLS fills slices of what it is given
        self._transport.set_protocol(self)

    def send(self, packed: bytes, receiver: Receiver | None) -> None:
        if self.lost is not None:
            self._refuse(receiver)
            return
        if receiver is not None:
            self.receivers.append(receiver)
        if self._written is None:
            # A lone command leaves at once. Those that come before its reply leave together, once a turn of the loop.
            if not self._alone:
                self._alone = True
                self._transport.write(packed)
                return
            self._written = []
            self._loop.call_soon(self._flush)
        self._written.append(packed)
        if len(self._written) >= _TOGETHER:  # equivalent: comparison, for speed
            if not self._transport.is_closing():  # asyncio would log each write until it reports the loss
                self._transport.write(b"".join(self._written))
            self._written.clear()

    def _flush(self) -> None:
        written, self._written, self._alone = self._written, None, False
        if written and self.lost is None:
            self._transport.write(b"".join(written))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        self._alone = False
        if self.receivers:
            self._on_heard(self.receivers[0])
        parser = self._parser
        parser.feed(self._read, 0, nbytes)
        while True:
            try:
                reply = parser.gets(False)  # equivalent: constant, the parser decodes nothing
            except Exception as error:  # also one of redis-py, which makes exceptions of error replies
                self.close(unreadable_protocol(error))
                return
            if reply is _MORE:
                return
            if self.receivers and not isinstance(reply, hiredis.PushNotification):
                self.receivers.popleft()(reply)  # as `_received` does, for speed
            else:
                self._received(reply)

    def pause_writing(self) -> None:
        self.full = True
        self._on_flow()

    def resume_writing(self) -> None:
        self.full = False
        self._on_flow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shut(exc or RedisConnectionError("Connection closed by server."))

    def close(self, reason: Exception | None = None) -> None:
        if self.lost is None:
            self._flush()
            with contextlib.suppress(RuntimeError):  # the loop is closed: the transport can only be dropped
                if reason is None and self._transport.get_write_buffer_size():
                    self._transport.close()
                else:
                    self._transport.abort()
            self._shut(reason or RedisConnectionError("Connection closed."))

    def detach_in_fork(self) -> None:
        # Closing the transport would remove the socket from the epoll set that is shared with the parent. So the
        # file descriptor is pointed at /dev/null, and closing it later does no harm.
        socket = self._transport.get_extra_info("socket")
        if socket is not None and socket.fileno() >= 0:  # equivalent: > + constant, 0 is standard input
            _lead_nowhere(socket.fileno())

    def _shut(self, reason: Exception) -> None:
        self._connection._reader = self._connection._writer = None
        if not isinstance(reason, RedisError):
            reason = RedisConnectionError(f"Connection lost: {reason}")
        self._lose(reason)


def _lead_nowhere(descriptor: int) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
    except OSError:
        # No descriptor is free. The next file opened gets the number closed here: a forked child has no other thread.
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.open(os.devnull, os.O_RDWR)
        return
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


@final
class ReplyConnection(Connection):
    """A link over a connection that has no stream, such as the in-memory server's: one task reads the replies."""

    distant = False

    def __init__(
        self, connection: RawConnection, on_push: Receiver | None, on_lost: Callable[[Exception], None], on_heard: Heard
    ) -> None:
        super().__init__(on_push, on_lost, on_heard)
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        task = background(self._read())
        if self.lost is None:  # see open_link
            self._task = task

    def send(self, packed: bytes, receiver: Receiver | None) -> None:
        if self.lost is not None:
            self._refuse(receiver)
            return
        if receiver is not None:
            self.receivers.append(receiver)
        try:
            self._connection._writer.writelines([packed])
        except Exception as error:
            self.close(error)

    async def _read(self) -> None:
        push_request = self._on_push is not None
        try:
            while True:
                try:
                    reply = await self._connection.read_response(
                        disable_decoding=True, disconnect_on_error=False, push_request=push_request
                    )
                except ResponseError as error:
                    reply = error
                if self.receivers:
                    self._on_heard(self.receivers[0])
                self._received(reply)
        except asyncio.CancelledError:
            self.close(ConnectionCancelled("Reading was cancelled."))
            raise
        except Exception as error:
            self.close(error)

    def close(self, reason: Exception | None = None) -> None:
        if self.lost is None:
            socket = getattr(self._connection, "_sock", None)
            if socket is not None:  # of the in-memory server, and would receive messages for ever
                socket.close()
                self._connection._sock = None
            self._connection._reader = self._connection._writer = None
            if self._task is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._task.cancel()
            self._lose(reason if isinstance(reason, RedisError) else RedisConnectionError("Connection closed."))


async def connected(connection: RawConnection, connect: Callable[[], Awaitable[None]]) -> RawConnection:
    """Return a *connection* of redis-py once it is connected.

    redis-py's own retries are off: code that retries must know whether Redis may have run a request. Each command of
    redis-py's handshake costs a round trip. So the handshake leaves out the name of the library (`Connection.library`)
    and the subscription to maintenance notices, which no code here reads.
    """
    connection.retry = NEVER
    connection.health_check_interval = 0
    if hasattr(connection, "maint_notifications_config"):
        connection.maint_notifications_config = None
    library = {name: getattr(connection, name) for name in _LIBRARY if hasattr(connection, name)}
    for name in library:
        setattr(connection, name, None)
    try:
        await connect()
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    for name, value in library.items():
        setattr(connection, name, value)
    return connection


def _library_of(connection: RawConnection) -> tuple[tuple[bytes, bytes], ...]:
    """Return the arguments by which redis-py's handshake names the library."""
    info = getattr(connection, "driver_info", None)
    name = getattr(connection, "lib_name", None) if info is None else info.formatted_name
    version = getattr(connection if info is None else info, "lib_version", None)
    return tuple((what, said.encode()) for what, said in ((b"LIB-NAME", name), (b"LIB-VER", version)) if said)


async def open_connection(
    endpoint: Endpoint, on_push: Receiver | None, on_lost: Callable[[Exception], None],
    on_flow: Callable[[], None] = lambda: None, on_heard: Heard = lambda receiver: None,
) -> Connection:  # fmt: skip
    """Return a link over a new connection. The caller bounds the time.

    *on_push* gets every message, on a link that expects no replies; *on_lost* the reason why no more replies will come;
    *on_heard* the receiver of the first reply of each batch. *on_flow* is called when it is full or has room again.
    """
    connection = await endpoint.connect()
    connection.socket_timeout = None  # replies are bounded one by one, see pipeline
    transport = getattr(connection._writer, "transport", None)
    link: Connection
    if hasattr(transport, "set_protocol"):  # uvloop's share no base class with asyncio's
        link = StreamConnection(connection, on_push, on_lost, on_flow, on_heard)
    else:
        link = ReplyConnection(connection, on_push, on_lost, on_heard)
        if link.lost is not None:  # an eager task has read the end already
            raise link.lost
    link.library = _library_of(connection)
    endpoint.opened(connection, link)
    return link


_connecting: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]]" = (
    weakref.WeakKeyDictionary()
)
"""For each loop the attempts that wait for their turn, behind the one that has it."""


async def _turn_to_connect() -> None:
    """Wait until no other attempt to connect begins in this turn of the loop.

    redis-py loads certificates for each connection over TLS, which takes about 30 ms. If a hundred sessions connected
    at once, that alone would take longer than their timeouts. All would give up, and try again at once.
    """
    loop = asyncio.get_running_loop()
    waiting = _connecting.setdefault(loop, deque())
    mine = loop.create_future()
    waiting.append(mine)
    if len(waiting) == 1:
        loop.call_soon(_next_to_connect, waiting)
    else:
        await mine


def _next_to_connect(waiting: "deque[asyncio.Future[None]]") -> None:
    del waiting[0]
    while waiting and waiting[0].done():  # cancelled meanwhile
        del waiting[0]
    if waiting:
        waiting[0].set_result(None)
        waiting[0].get_loop().call_soon(_next_to_connect, waiting)


@final
class Connector:
    """Opens one link at a time, in a task of its own.

    Invariant: after `start`, either *on_opened* or *on_failed* is called, once; both may call `start` again.
    """

    __slots__ = ("_endpoint", "_on_failed", "_on_opened", "_open", "_task", "busy", "stopped")

    def __init__(
        self, endpoint: Endpoint, open_link: Callable[[], Awaitable[Connection]],
        on_opened: Callable[[Connection], None], on_failed: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        self._endpoint = endpoint
        self._open = open_link
        self._on_opened = on_opened
        self._on_failed = on_failed
        self._task: asyncio.Task[None] | None = None
        self.busy = False
        """A link is being opened."""
        self.stopped = False
        """`stop` was called after the last `start`."""

    def start(self) -> None:
        """Open a link, unless `busy`."""
        if not self.busy:
            self.busy, self.stopped = True, False  # equivalent: True, nothing waits for a link then
            task = background(self._run())
            if self.busy:  # an eager task may be done already
                self._task = task

    def stop(self) -> None:
        """Cancel the task. `wait_for` before Python 3.12 may swallow that, so a link may still come."""
        self.stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            await _turn_to_connect()
            link = await self._open()
        except Exception as error:
            self._endpoint.unreachable()
            self._failed(error)
        except asyncio.CancelledError:
            self._failed(ConnectionCancelled("Connecting was cancelled."))
            raise
        else:
            self.busy, self._task = False, None
            self._on_opened(link)

    def _failed(self, error: Exception) -> None:
        self.busy, self._task = False, None
        self._on_failed(error)
