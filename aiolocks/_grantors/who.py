"""Who holds and who awaits a name: each session publishes this in a key, which other processes read (W23).

The key of a session holds its host and pid. For each lease or wait that has lasted half a second, it also holds the
names of its manager and task, and its note. One script writes it for many leases: ahead of the first request over each
link, when another lease has lasted half a second, and a few times per TTL, so that it does not expire. So a shorter
lease costs nothing. The key holds no secret: a lease is found in it by the digest of its token. Where the key may not
be written, host and process are unknown, and all else works.

A note has a field of its own. Older versions do not ask for it, and read the other names as before.

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
from .._core.options import MAX_NOTE
from .._core.replies import RawReply, check_reply
from .._core.timing import RENEWALS_PER_TTL
from .._core.tokens import digest_of, note_field, session_of
from .._core.untyped import Future, Task
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

_LASTING = 0.5
"""Seconds that a lease or a wait lasts before its names are published."""

_MIN_PAUSE = 0.05
"""Minimum number of seconds between two looks at what has lasted."""

_NOTE_INTERVAL = 2.0
"""Maximum number of seconds until a note that has changed is written."""

_MAX_NAMES = 20_000
"""Maximum number of leases and waits per session whose names are published. With short notes, the key takes 3 MB."""

_MAX_AT_ONCE = 100
"""Maximum number of leases and waits in one script, which takes the server a third of a millisecond."""

_MAX_TEXT = 100
"""Maximum number of characters of a name."""

_MAX_PREFIXES = 64

_MAX_SESSIONS = 100
"""Maximum number of sessions that are asked about at the same time."""

_FIRST_TIME = 10**15
"""Tickets and fencing tokens are µs since 1970, except tickets that pass the queue, and fencing tokens of others."""

_AFTER_TIME = 253_402_300_800 * 10**6
"""The end of the year 9999, the last one of a datetime. Damaged keys can have larger numbers."""

_HMGET = PlainCommand("HMGET")


class _Names(NamedTuple):
    """What a lease or a wait is called."""

    channels: bytes
    """The start of the channels of its prefix."""
    called: bytes
    note: bytes | None = None
    """None if it had none yet. An empty one is removed from the key."""


@final
@dataclass(slots=True, eq=False, repr=False)
class _Entry:
    """The state of the session's key under one prefix: the tokens whose fields may be *stale*, the oldest first."""

    key: bytes
    pending: bool = False
    refused: bool = False
    stale: dict[bytes, None] = field(default_factory=dict[bytes, None])
    due: int = 0  # equivalent: constant, each write sets it first
    """Number of stale tokens that the scripts under way still have to write. Later changes wait for the next ones."""


@final
class SessionInfo:
    """Publishes the key of one session. Its timer runs while there is a link.

    Its state is `_names`, the content of the keys, also where it is still to be written. Invariant: a token whose
    fields in a key may differ from `_names` is in `stale` of that key's entry, or in a script that is under way.
    """

    def __init__(
        self, context: Context, leases: Callable[[], Iterable[Iterable[LeaseState]]],
        queues: "Mapping[bytes, WaitQueue]", *, alone: bool,
    ) -> None:  # fmt: skip
        """*leases* returns several lists of leases, each newest first. *alone*: all names are on one server."""
        self._context = context
        self._leases = leases
        self._queues = queues
        self._alone = alone
        self._entries: dict[bytes, _Entry] = {}
        """By the prefix of channels."""
        self._names: dict[bytes, _Names] = {}
        """By token."""
        self._life = 0.0
        self._seen = -math.inf
        """Leases that began before this time have their names."""
        self._refresh_at = self._write_at = math.inf
        """When to write all keys, so that they live on, and when to write stale fields."""
        self._timer: asyncio.TimerHandle | None = None

    def publish(self, channels: bytes, ttl: float) -> None:
        """Write the key of a prefix, if it was not written: ahead of a request for a lease of *ttl* seconds."""
        self._life = max(self._life, ttl)
        if channels not in self._entries:
            if len(self._entries) >= _MAX_PREFIXES:
                del self._entries[next(iter(self._entries))]
            entry = self._entries[channels] = _Entry(session_key(channels, self._context.id))
            self._write_stale(entry)
            self._start()

    def connected(self) -> None:
        """Write the keys over a new link, ahead of the requests that wait for it: the server may have lost them."""
        for entry in self._entries.values():
            entry.refused = False
            self._write_stale(entry)
        if self._entries:
            self._start()

    def noted(self, request: Request) -> None:
        """Schedule the new note of a lease. If its names are not published yet, the note is written with them."""
        for part in [part.request for part in request.parts] or [request]:
            info = self if part.server is None else part.server.servers.info  # parts can be of several sessions
            names = info._names.get(part.token)
            if names is not None:
                write_at = self._context.clock() + _NOTE_INTERVAL - _LASTING  # the next look is in time
                info._rename(part.token, names._replace(note=_note(part)), write_at)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        self._refresh_at = self._context.clock() + self._life / RENEWALS_PER_TTL
        self._arm(min(_LASTING, self._life / RENEWALS_PER_TTL))

    def _arm(self, seconds: float) -> None:
        self.stop()
        self._timer = self._context.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Name what has lasted, and write all that is due. Look again when more has lasted."""
        now = self._context.clock()
        self._arm(_LASTING)  # first, so that no error ends the looks
        next_at = self._name_lasting(now)
        refresh = now >= self._refresh_at
        if refresh:
            tokens = self._context.tokens
            self._life = max((request.terms.ttl for request in tokens.values()), default=self._life)
            self._refresh_at = now + self._life / RENEWALS_PER_TTL
            self._forget_ended()
        if refresh or now >= self._write_at:
            self._write_at = math.inf
            for entry in self._entries.values():
                # `connected` writes it over the next link
                unlinked = self._alone and self._route(entry).pipeline.ready is None
                if (refresh or entry.stale) and not unlinked:
                    self._write_stale(entry)
        self._arm(max(min(next_at, self._refresh_at) - now, _MIN_PAUSE))

    def _name_lasting(self, now: float) -> float:
        """Name the leases and waits that have lasted by *now*. Return when the next of the others will have."""
        seen, self._seen = self._seen, now - _LASTING
        oldest = now
        for states in self._leases():
            for state in states:
                begun = state.validity.begun
                if begun <= seen:
                    break
                if begun <= self._seen:
                    self._name(state.request, state.task if state.body is None else state.body.task, now)
                else:
                    oldest = min(oldest, begun)
        for queue in self._queues.values():
            for request in queue.waiting.values():
                asked_at = request.asked_at
                if asked_at is None or request.token in self._names:
                    continue
                if asked_at <= self._seen:
                    self._name(request, _task_awaiting(request.turn), now)
                else:
                    oldest = min(oldest, asked_at)
        return oldest + _LASTING

    def _name(self, request: Request, task: Task | None, now: float) -> None:
        """Schedule the names of a lease or waiter, or of each part: its manager, its *task* and its note."""
        called = None if task is None else task.get_name()
        for part in [part.request for part in request.parts] or [request]:
            if part.server is None:
                continue
            keys, info = part.server.keys, part.server.servers.info  # parts can be of several sessions
            if task is not None or part.token not in info._names:  # the waiter's task is known
                names = _Names(keys.channels, text_of(keys.holder, called), _note(part) or None)
                info._rename(part.token, names, now)

    def _rename(self, token: bytes, names: _Names, write_at: float) -> None:
        """Schedule *names* for the timer's first run after *write_at*. An earlier run may write them too."""
        entry, known = self._entries.get(names.channels), self._names.get(token)
        if known is not None and not names.note:
            names = names._replace(note=None if known.note is None else b"")
        if entry is not None and names != known and (known is not None or len(self._names) < _MAX_NAMES):
            self._names[token] = names
            entry.stale[token] = None
            self._write_at = min(self._write_at, write_at)

    def _forget_ended(self) -> None:
        tokens = self._context.tokens
        for token in [token for token in self._names if token not in tokens]:
            entry = self._entries.get(self._names.pop(token).channels)
            if entry is not None:
                entry.stale[token] = None

    def _route(self, entry: _Entry) -> Route:
        return self._context.pipeline.route(entry.key)

    def _write_stale(self, entry: _Entry) -> None:
        """Write the key with all that is stale now, in several scripts if that is much, one after the other."""
        entry.due = len(entry.stale)
        if not entry.pending and not entry.refused:
            self._write(entry)

    def _write(self, entry: _Entry) -> None:
        words, gone = [b"host", _host(), b"pid", b"%d" % os.getpid()], list[bytes]()
        some = tuple(islice(entry.stale, min(entry.due, _MAX_AT_ONCE)))
        for token in some:
            del entry.stale[token]
            digest, names = digest_of(token), self._names.get(token)
            if names is None:
                gone += (digest, note_field(digest))
                continue
            words += (digest, names.called)
            if names.note:
                words += (note_field(digest), names.note)
            elif names.note is not None:
                gone.append(note_field(digest))
        entry.due -= len(some)
        entry.pending = True
        script = PreparedScript(load("session/introduce"), (entry.key,))
        # Until it is written next, leases can be renewed that outlast it otherwise, as the leases of a killed process.
        life_ms = round(1000 * self._life * (1 + 1 / RENEWALS_PER_TTL))
        args: Arguments = (life_ms, len(gone), *gone, *words)
        self._route(entry).submit(script, args, self._written, REPLY_TIMEOUT, entry, some)

    def _written(self, call: PendingCall, reply: RawReply) -> None:
        entry: _Entry = call.subject
        some: tuple[bytes, ...] = call.reply_to
        entry.pending = False
        if reply != 1:  # the timer's next run retries: retrying here would not end where the key is always gone
            lost = some
            if not isinstance(reply, Exception):  # the key was not there, and now has no names but *some*
                entries = self._entries
                own = (token for token, names in self._names.items() if entries.get(names.channels) is entry)
                written = set(some)
                lost = tuple(token for token in own if token not in written)  # in order, so that a run can be repeated
            entry.stale |= dict.fromkeys(lost)
            entry.due = 0
            self._write_at = min(self._write_at, self._context.clock())
        if isinstance(reply, ResponseError) and not isinstance(reply, NotNowError):
            entry.refused = True
            message = "holders() and waiters() cannot tell this process's host and pid: %s"
            warn_once(self._context.pool, "host and pid", message, reply, level=logging.DEBUG)
        if entry.due:
            self._write(entry)


def _task_awaiting(turn: Future) -> Task | None:
    """Return the task that awaits *turn*, if asyncio shows it. Most waits are short, so requests do not record it."""
    callbacks: list[tuple[object, object]] = getattr(turn, "_callbacks", None) or []
    tasks: list[Any] = [getattr(callback, "__self__", None) for callback, _ in callbacks]
    return next((cast(Task, each) for each in tasks if hasattr(each, "get_name")), None)


@lru_cache(maxsize=1)
def _host() -> bytes:
    return text_of(socket.gethostname())


def text_of(*names: str | None) -> bytes:
    """Return *names* as they are written: each cut to a sane length, with a NUL between."""
    return b"\0".join(_text(name, _MAX_TEXT) for name in names)


def _text(text: str | None, most: int) -> bytes:
    return (text or "").replace("\0", " ")[:most].encode(errors="replace")


def _note(request: Request) -> bytes:
    return _text(request.note, MAX_NOTE)


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
    note: str | None = None


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
            rows.append(WaiterRow(session_of(token), digest_of(token), _ticket(ticket), int(now), int(share)))
    waiters: list[Waiter] = []
    places = {row.digest: at for at, row in enumerate(_in_order(rows))}
    for row, named in await _sorted(rows, only, grantor):
        since = time_of(row.ticket)
        waiting = 0.0 if since is None else max(row.now - row.ticket, 0) / 1e6
        words = {**named._asdict(), **_amount(grantor, row.permits)}
        waiters.append(Waiter(**words, since=since, waiting=waiting, position=places[row.digest]))
    return tuple(waiters)


def _ticket(score: bytes) -> int:
    """Return a ticket, which is a score of Redis, or 0 if the reply has none in its place."""
    try:
        return int(float(score))
    except (ValueError, OverflowError):
        return 0


async def _sorted(rows: Sequence[R], only: Sequence[int], grantor: "RedisGrantor") -> "zip[tuple[R, Named]]":
    """Sort *rows* by their numbers, and look up the names."""
    kept = [row for row in _in_order(rows) if not only or row.permits in only]
    return zip(kept, await names_of(grantor, kept), strict=True)


def _in_order(rows: Sequence[R]) -> list[R]:
    """Sort *rows* by their numbers, each once: a row can be listed twice, as others before it have left."""
    return sorted({row.digest: row for row in rows}.values(), key=lambda row: row[2])


def time_of(micros: int) -> datetime | None:
    """Return the server's time of *micros* µs since 1970 as a datetime. None means that the time is not known."""
    if not _FIRST_TIME <= micros < _AFTER_TIME:  # equivalent: comparison, one moment in 2001, and one in 9999
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
            for digest, text, note in zip(digests[session], texts[::2], texts[1::2], strict=True):
                called, _, task = (text or b"").decode(errors="replace").partition("\0")
                said = (note or b"").decode(errors="replace")[:MAX_NOTE]
                found[session, digest] = Named(place, number, called or None, task or None, said or None)
    return [found.get((row.session, row.digest), Named()) for row in rows]


async def _read_key(grantor: "RedisGrantor", session: bytes, digests: list[bytes]) -> list[bytes | None]:
    context, fields = grantor.context, [field for digest in digests for field in (digest, note_field(digest))]
    count = 2 + len(fields)
    key = session_key(grantor.keys.channels, session)

    def check(call: PendingCall, reply: RawReply) -> None:
        check_reply(call.command.name, reply)
        if len(reply) != count:
            raise ValueError

    with context.in_use():
        try:
            args = (key, b"host", b"pid", *fields)
            answers: list[bytes | None] = await context.pipeline.route(key).ask(_HMGET, args, on_reply=check)
        except RedisError:
            return [None] * count
        return answers
