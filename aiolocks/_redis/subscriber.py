"""Receives the wake-ups of a session, over one connection that is open while a caller waits.

A wake-up is a hint. A waiter that misses it finds its grant at its next re-check. A session queues first and subscribes
then, which saves a round trip. As an early grant passes it over, all waiters are re-checked after each subscription.
"""

import asyncio
import re
from collections.abc import Callable
from typing import final

from redis.exceptions import AskError, NoPermissionError, ResponseError

from .._core.keys import of_shard, slot_of
from .._core.replies import RawReply
from .connection import Connection, ConnectionCancelled, Connector, Endpoint, open_connection
from .scripts import pack

_CONNECT_TIMEOUT = 5.0
_NOTICE = re.compile(rb"(\S+) (-?\d{1,16}) (-?\d{1,15}) (.+)", re.DOTALL)
"""Token, fencing token, ms of the lease, key of the holder. A fencing token of -1 means that the request is refused.
Then the third field says why: the limit of a semaphore, or for an upgrade 0 if there is nothing to upgrade and -1 if
the lease was revoked. Any client can publish anything, and a fencing token is below 2**53."""

_MAX_UNUSED = 64
"""Maximum number of channels that stay subscribed without a waiter: a busy name soon has a waiter again."""

_MAX_PAUSE = 1.0
"""Maximum interval in seconds between attempts to connect. Re-checks go on over the other connection."""


@final
class Subscriber:
    """Subscribes when asked to listen, and stays subscribed until closed.

    Invariant: there is a link, an attempt to connect, or a timer for the next attempt, while a channel is wanted.
    """

    def __init__(
        self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], *,
        on_grant: Callable[[bytes, int, int, bytes], None], on_subscribed: Callable[[bytes], None],
        on_forbidden: Callable[[ResponseError], None], on_moved: Callable[[bytes], None] = lambda channel: None,
    ) -> None:  # fmt: skip
        """*on_forbidden* gets the error if this user may not subscribe, *on_moved* a channel whose slot has moved."""
        self._endpoint = endpoint
        self._loop = loop
        self._clock = clock
        self._on_grant = on_grant
        self._on_subscribed = on_subscribed
        self._on_forbidden = on_forbidden
        self._on_moved = on_moved
        self._unused: dict[bytes, None] = {}
        """Shard channels without a waiter, the longest unused first."""
        self._wanted: set[bytes] = set()
        self._confirmed: dict[bytes, float] = {}
        """When the subscription to each channel was confirmed on this link."""
        self._link: Connection | None = None
        self._connector = Connector(endpoint, self._open_link, self._opened, self._not_opened)
        self._retry: asyncio.TimerHandle | None = None
        self._failures = 0
        self._asked_at = 0.0

    def listen(self, channel: bytes) -> None:
        """Subscribe to *channel*, unless it is subscribed or the request is on its way."""
        self._unused.pop(channel, None)
        if channel in self._wanted:
            if channel not in self._confirmed and self._clock() - self._asked_at > _CONNECT_TIMEOUT:
                self.reconnect()
            return
        self._wanted.add(channel)
        self._asked_at = self._clock()
        if self._link is not None:
            self._subscribe(self._link, (channel,))
        elif self._retry is None:
            self._connect()

    def leave(self, channel: bytes) -> None:
        """Record that *channel* has no waiter. Unused channels are limited, as each name may have its own."""
        if self._link is None:
            self.forget(channel)
        elif channel in self._wanted:
            self._unused[channel] = None
            if len(self._unused) > _MAX_UNUSED:
                unused = next(iter(self._unused))
                self.forget(unused)
                self._link.send(pack(("SUNSUBSCRIBE", unused)), None)

    def listening(self, channel: bytes, at: float) -> bool:
        """Whether the subscription had been confirmed at local time *at*, and not been lost since."""
        return self._confirmed.get(channel, at + 1.0) <= at  # equivalent: constant, any moment after it

    def reconnect(self) -> None:
        """Open a new connection. The server finds no subscriber, so this connection must be dead."""
        if self._link is not None:
            self._link.close()

    def detach_in_fork(self) -> None:
        if self._link is not None:
            self._link.detach_in_fork()

    def close(self) -> None:
        self._wanted.clear()
        self._confirmed.clear()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._connector.stop()
        if self._link is not None:
            link, self._link = self._link, None
            link.send(pack(("UNSUBSCRIBE",)), None)  # the in-memory server does not notice a closed connection
            link.close()

    def _connect(self) -> None:
        self._retry = None
        self._connector.start()

    async def _open_link(self) -> Connection:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            return await open_connection(self._endpoint, self._pushed, self._lost)

    def _not_opened(self, error: Exception) -> None:
        if isinstance(error, ConnectionCancelled) and not (self._connector.stopped and self._wanted):
            self._wanted.clear()  # the loop is about to end; if it is not, the next re-check asks to listen
        else:  # re-checks go on, and report their errors to the waiters
            self._try_later()

    def _opened(self, link: Connection) -> None:
        if not self._wanted:  # closed meanwhile
            link.close()
            return
        self._link = link
        for said in link.library:
            link.send(pack(("CLIENT", "SETINFO", *said)), lambda reply: None)
        self._asked_at = self._clock()
        self._subscribe(link, tuple(sorted(self._wanted)))  # in one order, so that a simulation can be repeated

    def _subscribe(self, link: Connection, channels: tuple[bytes, ...]) -> None:
        usual = tuple(channel for channel in channels if not of_shard(channel))
        if usual:
            link.send(pack(("SUBSCRIBE", *usual)), None)
        for channel in channels:
            if of_shard(channel):  # one command each, as they may be in different slots
                link.send(pack(("SSUBSCRIBE", channel)), None)

    def forget(self, channel: bytes) -> None:
        self._wanted.discard(channel)
        self._confirmed.pop(channel, None)
        self._unused.pop(channel, None)

    def _try_later(self) -> None:
        self._failures += 1
        if self._retry is None and self._wanted:
            pause = min(0.02 * 2 ** min(self._failures, 6), _MAX_PAUSE)
            self._retry = self._loop.call_later(pause, self._connect)

    def _lost(self, reason: Exception) -> None:
        self._link = None
        self._confirmed.clear()
        for channel in tuple(self._unused):  # not worth a new connection: the node may be gone for ever
            self.forget(channel)
        if isinstance(reason, ConnectionCancelled):  # as in `_not_opened`
            self._wanted.clear()
        if self._wanted:
            self._try_later()

    def _pushed(self, message: RawReply) -> None:
        if isinstance(message, AskError):  # or MovedError
            for channel in sorted(self._wanted):
                if of_shard(channel) and slot_of(channel) == message.slot_id:
                    self.forget(channel)
                    self._on_moved(channel)
            return
        if isinstance(message, ResponseError):
            link, self._link = self._link, None
            self._wanted.clear()
            if link is not None:
                link.close()
            if isinstance(message, NoPermissionError) or "unknown command" in str(message):  # before Redis 7
                self._on_forbidden(message)
            return
        match message:
            case [b"subscribe" | b"ssubscribe", bytes(channel), _]:
                self._failures = 0
                if channel in self._wanted:
                    self._confirmed[channel] = self._clock()
                    self._on_subscribed(channel)
            case [b"sunsubscribe", bytes(channel), _]:
                # defect: I2-ended
                if channel in self._wanted:  # the server has ended it, as the slot has moved
                    self.forget(channel)
                    self._on_moved(channel)
            case [b"message" | b"smessage", _, bytes(notice)]:
                fields = _NOTICE.fullmatch(notice)
                if fields is not None:
                    token, fence, amount, base = fields.groups()
                    self._on_grant(token, int(fence), int(amount), base)
            case _:
                pass
