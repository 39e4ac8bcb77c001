"""The key of a session, which says of which host and process it is, and what its lasting leases are called.

It is written ahead of the first request over each link, and again a few times in the life of the longest lease, for all
leases together: one that is released before its first renewal costs nothing. It holds no secret: a lease is found in it
by the digest of its token. Where it may not be written, all works as before, and no one is told of host and process.
"""

import asyncio
import logging
import os
import socket
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol, cast, final

from redis.exceptions import ResponseError

from .._core.answers import REPLY_TIMEOUT, NotNowError
from .._core.keys import Keys, session_key
from .._core.timing import RENEWALS_PER_TTL
from .._core.tokens import digest_of
from .._engine.context import Context
from .._engine.lease_state import LeaseState
from .._engine.request import Request
from .._redis.clients import lifetime_of
from .._redis.pipeline import PendingCall
from .._redis.router import Route
from .._redis.scripts import Arguments, PreparedScript, load
from .wait_queue import WaitQueue

log = logging.getLogger("aiolocks")

MOST_NAMED = 500
"""Leases of one session whose names are written: the key stays small, and no script is long."""

LONGEST_TEXT = 100
"""Characters of a name."""

_MOST_PREFIXES = 64


@final
class _Card:
    """What is known of the key under one prefix."""

    __slots__ = ("key", "pending", "refused", "written")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.pending = self.refused = False
        self.written: dict[bytes, None] = {}
        """Tokens whose names are in it."""


class Named(Protocol):
    """What is asked here of the grantor that has asked for a request."""

    @property
    def context(self) -> Context: ...

    @property
    def keys(self) -> Keys:
        """Those of its name."""
        ...


@final
class Introduction:
    """Of one session. Its timer runs while there is a link."""

    def __init__(
        self, context: Context, lasting: Callable[[], Iterable[LeaseState]], queues: Mapping[bytes, WaitQueue], *,
        alone: bool,
    ) -> None:  # fmt: skip
        """*lasting* returns the leases that were renewed; *alone*: all names are on one server."""
        self._context = context
        self._lasting = lasting
        self._queues = queues
        self._alone = alone
        self._cards: dict[bytes, _Card] = {}
        """By what channels of a prefix begin with."""
        self._names: dict[bytes, tuple[bytes, bytes]] = {}
        """Of each token its prefix, as above, and the text."""
        self._life = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def introduce(self, channels: bytes, ttl: float) -> None:
        """Write the key of a prefix if that was not done: ahead of a request for a lease of *ttl* seconds."""
        self._life = max(self._life, ttl)
        if channels not in self._cards:
            if len(self._cards) >= _MOST_PREFIXES:
                del self._cards[next(iter(self._cards))]
            card = self._cards[channels] = _Card(session_key(channels, self._context.id))
            self._write(channels, card)
            self._arm()

    def connected(self) -> None:
        """Write over a new link what the server may not have any more, ahead of all that waits for one."""
        for channels, card in self._cards.items():
            if not card.pending:
                card.refused = False
                self._write(channels, card)
        if self._cards:
            self._arm()

    def stop(self) -> None:
        """The session has nothing to say."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _call(self, request: Request, task: "asyncio.Task[Any] | None") -> None:
        """Have it written what a lease is called, or each of its parts: by its manager, and by its *task*."""
        called = None if task is None else task.get_name()
        for part in [part.request for part in request.parts] or [request]:
            server: Named | None = part.server
            if server is not None:
                names = cast("Introduction", server.context.introduction)._names
                if len(names) < MOST_NAMED and part.token not in names:
                    names[part.token] = server.keys.channels, text_of(server.keys.holder, called)

    def _look(self) -> None:
        """Write what there is to write, and look again after a while."""
        tokens = self._context.tokens
        self._life = max((request.ttl for request in tokens.values()), default=self._life)
        self._arm()
        for token in [token for token in self._names if token not in tokens]:
            del self._names[token]
        for state in islice(self._lasting(), MOST_NAMED):
            self._call(state.request, state.task if state.body is None else state.body.task)
        now = self._context.clock()
        for request in islice((one for queue in self._queues.values() for one in queue.waiting.values()), MOST_NAMED):
            if request.asked_at is not None and now - request.asked_at >= request.ttl / RENEWALS_PER_TTL:
                self._call(request, _task_awaiting(request.turn))
        for channels, card in self._cards.items():
            begins_anew = self._alone and self._route(card).ready is None  # then the new link begins with it
            if not card.pending and not card.refused and not begins_anew:
                self._write(channels, card)

    def _route(self, card: _Card) -> Route:
        return self._context.pipeline.route(card.key)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._context.loop.call_later(self._life / RENEWALS_PER_TTL, self._look)

    def _write(self, channels: bytes, card: _Card) -> None:
        written, names = card.written, self._names
        gone = [token for token in written if token not in names]
        new = {token: text for token, (of, text) in names.items() if of == channels and token not in written}
        words = [digest_of(token) for token in gone]
        words += [b"host", _host(), b"pid", b"%d" % os.getpid()]
        for token, text in new.items():
            words += (digest_of(token), text)
        card.pending = True
        card.written = {token: None for token in written if token in names} | dict.fromkeys(new)
        bound = PreparedScript(load("session/introduce"), lambda _: (card.key,))
        args: Arguments = (round(1000 * self._life), len(gone), *words)
        self._route(card).submit(bound, args, self._written, REPLY_TIMEOUT, card)

    def _written(self, call: PendingCall, reply: Any) -> None:
        card: _Card = call.subject
        card.pending = False
        if reply != 1:  # it was not there, or may not be
            card.written = {}
        if isinstance(reply, ResponseError) and not isinstance(reply, NotNowError):
            card.refused = True
            lifetime = lifetime_of(self._context.pool)
            if lifetime not in _told:
                _told.add(lifetime)
                log.debug("holders() and waiters() cannot tell this process's host and pid: %s", reply)


def _task_awaiting(turn: "asyncio.Future[Any]") -> "asyncio.Task[Any] | None":
    """Return the task that awaits *turn*, as far as asyncio tells; most waits are short, and note nothing."""
    callbacks: list[tuple[object, object]] = getattr(turn, "_callbacks", None) or []
    tasks: list[Any] = [getattr(callback, "__self__", None) for callback, _ in callbacks]
    return next((cast("asyncio.Task[Any]", each) for each in tasks if hasattr(each, "get_name")), None)


_told: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Of pools whose sessions may not write their keys: a session is short-lived, and one line is enough."""


@lru_cache(maxsize=1)
def _host() -> bytes:
    return text_of(socket.gethostname())


def text_of(*names: str | None) -> bytes:
    """Return *names* as they are written: each cut to what is sane, with a NUL between."""
    each = ((name or "").replace("\0", " ")[:LONGEST_TEXT] for name in names)
    return "\0".join(each).encode(errors="replace")
