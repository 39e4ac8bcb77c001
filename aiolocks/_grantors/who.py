"""Who holds and who awaits a name: each session publishes this in a key, which other processes read (W23).

The key of a session says on which host and in which process it runs, and what its long leases are called. It is written
ahead of the first request over each link, and again a few times in the life of the longest lease, for all leases
together. So a lease that is released before its first renewal costs nothing. The key holds no secret: a lease is found
in it by the digest of its token. Where the key may not be written, host and process are unknown, and all else works.

A reader discards tokens at once, and keeps only session ids and digests. An unknown value is None.
"""

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, final

from redis.exceptions import RedisError, ResponseError

from .._core.answers import REPLY_TIMEOUT, NotNowError
from .._core.keys import session_key
from .._core.modes import MODE_NAMES
from .._core.replies import RawReply, check_reply
from .._core.timing import RENEWALS_PER_TTL
from .._core.tokens import digest_of, session_of
from .._core.values import Holder, Waiter
from .._engine.context import Context
from .._engine.lease_state import LeaseState
from .._engine.request import Request
from .._redis.clients import warn_once
from .._redis.cluster import Route
from .._redis.pipeline import PendingCall
from .._redis.scripts import Arguments, PlainCommand, PreparedScript, load

if TYPE_CHECKING:
    from .one_server import RedisGrantor
    from .wait_queue import WaitQueue

_MAX_NAMES = 500
"""Maximum number of leases per session whose names are written, so that the key stays small and no script is long."""

_MAX_TEXT = 100
"""Maximum number of characters of a name."""

_MAX_PREFIXES = 64

_MAX_SESSIONS = 100
"""Maximum number of sessions that are asked about at the same time."""

_FIRST_TIME = 10**15
"""Tickets and fencing tokens are µs since 1970, except tickets that pass the queue, and fencing tokens of others."""

_HMGET = PlainCommand("HMGET")


@final
@dataclass(slots=True, eq=False, repr=False)
class _Entry:
    """The state of the session's key under one prefix, and the tokens whose names are *written* in it."""

    key: bytes
    pending: bool = False
    refused: bool = False
    written: dict[bytes, None] = field(default_factory=dict[bytes, None])


@final
class SessionInfo:
    """Publishes the key of one session. Its timer runs while there is a link."""

    def __init__(
        self, context: Context, renewed: Callable[[], Iterable[LeaseState]], queues: "Mapping[bytes, WaitQueue]", *,
        alone: bool,
    ) -> None:  # fmt: skip
        """*renewed* returns the leases that were renewed. *alone*: all names are on one server."""
        self._context = context
        self._renewed = renewed
        self._queues = queues
        self._alone = alone
        self._entries: dict[bytes, _Entry] = {}
        """By the prefix of channels."""
        self._names: dict[bytes, tuple[bytes, bytes]] = {}
        """Prefix and text, by token."""
        self._life = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def publish(self, channels: bytes, ttl: float) -> None:
        """Write the key of a prefix, if it was not written: ahead of a request for a lease of *ttl* seconds."""
        self._life = max(self._life, ttl)
        if channels not in self._entries:
            if len(self._entries) >= _MAX_PREFIXES:
                del self._entries[next(iter(self._entries))]
            entry = self._entries[channels] = _Entry(session_key(channels, self._context.id))
            self._write(channels, entry)
            self._arm()

    def connected(self) -> None:
        """Write the keys over a new link, ahead of the requests that wait for it: the server may have lost them."""
        for channels, entry in self._entries.items():
            if not entry.pending:
                entry.refused = False
                self._write(channels, entry)
        if self._entries:
            self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _name(self, request: Request, task: "asyncio.Task[Any] | None") -> None:
        """Have the names of a lease or waiter written, or those of each part: its manager's name, and its *task*'s."""
        called = None if task is None else task.get_name()
        for part in [part.request for part in request.parts] or [request]:
            grantor: RedisGrantor | None = part.server
            if grantor is not None:
                names = grantor.servers.info._names  # parts can be of several sessions
                if len(names) < _MAX_NAMES and part.token not in names:
                    names[part.token] = grantor.keys.channels, text_of(grantor.keys.holder, called)

    def _refresh(self) -> None:
        """Write the keys with the names of all long leases and waits, and do so again after a while."""
        tokens = self._context.tokens
        self._life = max((request.terms.ttl for request in tokens.values()), default=self._life)
        self._arm()
        for token in [token for token in self._names if token not in tokens]:
            del self._names[token]
        for state in islice(self._renewed(), _MAX_NAMES):
            self._name(state.request, state.task if state.body is None else state.body.task)
        now = self._context.clock()
        for request in islice((one for queue in self._queues.values() for one in queue.waiting.values()), _MAX_NAMES):
            if request.asked_at is not None and now - request.asked_at >= request.terms.ttl / RENEWALS_PER_TTL:
                self._name(request, _task_awaiting(request.turn))
        for channels, entry in self._entries.items():
            # `connected` writes it over the next link
            unlinked = self._alone and self._route(entry).pipeline.ready is None
            if not entry.pending and not entry.refused and not unlinked:
                self._write(channels, entry)

    def _route(self, entry: _Entry) -> Route:
        return self._context.pipeline.route(entry.key)

    def _arm(self) -> None:
        self.stop()
        self._timer = self._context.loop.call_later(self._life / RENEWALS_PER_TTL, self._refresh)

    def _write(self, channels: bytes, entry: _Entry) -> None:
        written, names = entry.written, self._names
        gone = [token for token in written if token not in names]
        new = {token: text for token, (of, text) in names.items() if of == channels and token not in written}
        words = [digest_of(token) for token in gone]
        words += [b"host", _host(), b"pid", b"%d" % os.getpid()]
        for token, text in new.items():
            words += (digest_of(token), text)
        entry.pending = True
        entry.written = {token: None for token in written if token in names} | dict.fromkeys(new)
        script = PreparedScript(load("session/introduce"), (entry.key,))
        args: Arguments = (round(1000 * self._life), len(gone), *words)
        self._route(entry).submit(script, args, self._written, REPLY_TIMEOUT, entry)

    def _written(self, call: PendingCall, reply: RawReply) -> None:
        entry: _Entry = call.subject
        entry.pending = False
        if reply != 1:  # the key was not there, or may not be
            entry.written = {}
        if isinstance(reply, ResponseError) and not isinstance(reply, NotNowError):
            entry.refused = True
            message = "holders() and waiters() cannot tell this process's host and pid: %s"
            warn_once(self._context.pool, "host and pid", message, reply, level=logging.DEBUG)


def _task_awaiting(turn: "asyncio.Future[Any]") -> "asyncio.Task[Any] | None":
    """Return the task that awaits *turn*, if asyncio shows it. Most waits are short, so requests do not record it."""
    callbacks: list[tuple[object, object]] = getattr(turn, "_callbacks", None) or []
    tasks: list[Any] = [getattr(callback, "__self__", None) for callback, _ in callbacks]
    return next((cast("asyncio.Task[Any]", each) for each in tasks if hasattr(each, "get_name")), None)


@lru_cache(maxsize=1)
def _host() -> bytes:
    return text_of(socket.gethostname())


def text_of(*names: str | None) -> bytes:
    """Return *names* as they are written: each cut to a sane length, with a NUL between."""
    each = ((name or "").replace("\0", " ")[:_MAX_TEXT] for name in names)
    return "\0".join(each).encode(errors="replace")


class HolderRow(NamedTuple):
    """A holder in the reply of a script."""

    session: bytes
    """Its id; empty if the holder is not one of this library's sessions."""
    digest: bytes
    fence: int
    left_ms: int
    permits: int


class WaiterRow(NamedTuple):
    """A waiter in the reply of a script."""

    session: bytes
    digest: bytes
    ticket: int
    now: int
    """The server's time in µs."""
    permits: int


R = TypeVar("R", HolderRow, WaiterRow)


class Named(NamedTuple):
    """The host and process of a session, and the names of one of its leases."""

    host: str | None = None
    pid: int | None = None
    holder: str | None = None
    task: str | None = None


async def holders_of(grantor: "RedisGrantor", only: Sequence[int] = ()) -> tuple[Holder, ...]:
    """Return the holders of the name, oldest first. If *only* lists modes, return those in one of them."""
    family = "lock" if grantor.keys.family in {"lock", "exact"} else "semaphore"  # the others' are a sorted set
    rows, place = list[HolderRow](), 0
    while True:
        place, *fields = await grantor.ask(f"{family}/holders", (place,))
        rows += holder_rows(fields)
        if place <= 0:
            break
    return tuple([holder_of(row, named, grantor) for row, named in await _sorted(rows, only, grantor)])


def holder_rows(fields: Sequence[RawReply]) -> list[HolderRow]:
    """Return the holders in one flat list of fields."""
    return [
        HolderRow(session_of(token), digest_of(token), int(fence), int(left), int(share))
        for token, fence, left, share in zip(*[iter(fields)] * 4, strict=True)
    ]


def holder_of(row: HolderRow, named: Named, grantor: "RedisGrantor") -> Holder:
    """Return the holder in a row, with its names."""
    remaining = math.inf if row.left_ms < 0 else row.left_ms / 1000
    words = {**named._asdict(), **_amount(grantor, row.permits)}
    return Holder(**words, since=time_of(row.fence), remaining=remaining, fencing_token=row.fence)


async def waiters_of(grantor: "RedisGrantor", only: Sequence[int] = ()) -> tuple[Waiter, ...]:
    """Return the waiters for the name in queue order. If *only* lists modes, return those for one of them."""
    rows: list[WaiterRow] = []
    place, skip = 0, 0
    while place >= 0:
        place, skip, now, *fields = await grantor.ask("lock/waiters", (place, skip))
        for token, ticket, share in zip(*[iter(fields)] * 3, strict=True):
            rows.append(WaiterRow(session_of(token), digest_of(token), int(float(ticket)), int(now), int(share)))
    waiters: list[Waiter] = []
    for row, named in await _sorted(rows, only, grantor):
        since = time_of(row.ticket)
        waiting = 0.0 if since is None else max(row.now - row.ticket, 0) / 1e6
        waiters.append(Waiter(**named._asdict(), since=since, waiting=waiting, **_amount(grantor, row.permits)))
    return tuple(waiters)


async def _sorted(rows: Sequence[R], only: Sequence[int], grantor: "RedisGrantor") -> "zip[tuple[R, Named]]":
    """Sort *rows* by their numbers, and look up the names. A row can be listed twice, as others before it have left."""
    each = {row.digest: row for row in rows}
    kept = sorted((row for row in each.values() if not only or row.permits in only), key=lambda row: row[2])
    return zip(kept, await names_of(grantor, kept), strict=True)


def time_of(micros: int) -> datetime | None:
    """Return the server's time of *micros* µs since 1970 as a datetime. None means that the time is not known."""
    if micros < _FIRST_TIME:
        return None
    return datetime.fromtimestamp(micros // 10**6, UTC).replace(microsecond=micros % 10**6)


def _amount(grantor: "RedisGrantor", permits: int) -> dict[str, Any]:
    if grantor.keys.family == "modes":
        return {"permits": 1, "mode": MODE_NAMES.get(permits)}
    return {"permits": permits or 1, "mode": None}


async def names_of(grantor: "RedisGrantor", rows: Sequence[HolderRow | WaiterRow]) -> list[Named]:
    """Return the names of each row, as far as the key of its session exists and may be read."""
    digests: dict[bytes, list[bytes]] = {}
    for row in rows:
        if row.session:
            digests.setdefault(row.session, []).append(row.digest)
    found: dict[tuple[bytes, bytes], Named] = {}
    sessions = list(digests)
    for at in range(0, len(sessions), _MAX_SESSIONS):
        some = sessions[at : at + _MAX_SESSIONS]
        answers = await asyncio.gather(*(_read_key(grantor, session, digests[session]) for session in some))
        for session, (host, pid, *texts) in zip(some, answers, strict=True):
            place = (host or b"").decode(errors="replace") or None
            number = int(pid) if pid and pid.isdigit() and len(pid) < 10 else None
            for digest, text in zip(digests[session], texts, strict=True):
                called, _, task = (text or b"").decode(errors="replace").partition("\0")
                found[session, digest] = Named(place, number, called or None, task or None)
    return [found.get((row.session, row.digest), Named()) for row in rows]


async def _read_key(grantor: "RedisGrantor", session: bytes, digests: list[bytes]) -> list[bytes | None]:
    context, count = grantor.context, 2 + len(digests)
    key = session_key(grantor.keys.channels, session)

    def check(call: PendingCall, reply: RawReply) -> None:
        check_reply(call.command.name, reply)
        if len(reply) != count:
            raise ValueError

    with context.in_use():
        try:
            args = (key, b"host", b"pid", *digests)
            answers: list[bytes | None] = await context.pipeline.route(key).ask(_HMGET, args, on_reply=check)
        except RedisError:
            return [None] * count
        return answers
