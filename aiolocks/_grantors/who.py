"""Asks Redis who holds and who awaits a name, in parts, and each session's key for its host and process.

Tokens are let go at once: all that is kept and told is the id of a session and a digest; see `tokens`. What cannot be
found out is None.
"""

import asyncio
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError

from .._core.answers import REPLY_TIMEOUT
from .._core.keys import session_key
from .._core.modes import MODE_NAMES
from .._core.tokens import digest_of, session_of
from .._core.values import Holder, Waiter
from .._engine.request import resolve_call
from .._redis.pipeline import PendingCall
from .._redis.scripts import PlainCommand

if TYPE_CHECKING:
    from .one_server import RedisGrantor

_FIRST_TIME = 10**15
"""Fencing tokens and tickets are µs since 1970, but for tickets that pass the queue, and fencing tokens of others."""

_SESSIONS = 100
"""Asked about at the same time."""

_HMGET = PlainCommand("HMGET")


class HolderRow(NamedTuple):
    """A holder as the script tells of it."""

    session: bytes
    """Its id; empty if it is none of ours."""
    digest: bytes
    fence: int
    left_ms: int
    permits: int


class WaiterRow(NamedTuple):
    """A waiter as the script tells of it."""

    session: bytes
    digest: bytes
    ticket: int
    now: int
    """The server's time in µs."""
    permits: int


class Named(NamedTuple):
    """What a session says of itself and of one of its leases."""

    host: str | None = None
    pid: int | None = None
    holder: str | None = None
    task: str | None = None


async def holders_of(grantor: "RedisGrantor", only: Sequence[int] = ()) -> tuple[Holder, ...]:
    """Return who holds the name, oldest first; *only* those in one of these modes, if there are any.

    Raises:
        RedisError: Redis could not be asked.
    """
    rows: dict[bytes, HolderRow] = {}
    place = 0
    while True:
        family = "lock" if grantor.keys.family in {"lock", "exact"} else "semaphore"  # the others' are a sorted set
        place, *fields = await grantor.ask(f"{family}/holders", (place,))
        for row in holder_rows(fields):
            rows[row.digest] = row  # one may be told of twice, as others before it have gone
        if place <= 0:
            break
    kept = sorted((row for row in rows.values() if not only or row.permits in only), key=lambda row: row.fence)
    names = await names_of(grantor, kept)
    return tuple(holder_of(row, named, grantor) for row, named in zip(kept, names, strict=True))


def holder_rows(fields: Sequence[Any]) -> list[HolderRow]:
    """Return what is told of holders in one list."""
    return [
        HolderRow(session_of(token), digest_of(token), int(fence), int(left), int(share))
        for token, fence, left, share in zip(*[iter(fields)] * 4, strict=True)
    ]


def holder_of(row: HolderRow, named: Named, grantor: "RedisGrantor") -> Holder:
    """Return what a row tells, and what its session says of it."""
    remaining = math.inf if row.left_ms < 0 else row.left_ms / 1000
    return Holder(
        **named._asdict(), since=time_of(row.fence), remaining=remaining, **_share(grantor, row.permits),
        fencing_token=row.fence,
    )  # fmt: skip


async def waiters_of(grantor: "RedisGrantor", only: Sequence[int] = ()) -> tuple[Waiter, ...]:
    """Return who waits for the name, first come first; *only* those for one of these modes, if there are any.

    Raises:
        RedisError: Redis could not be asked.
    """
    rows: dict[bytes, WaiterRow] = {}
    place, skip = 0, 0
    while place >= 0:
        place, skip, now, *fields = await grantor.ask(
            "lock/waiters", (place, skip), keys=(grantor.keys.part(b"queue"),)
        )
        for token, ticket, share in zip(*[iter(fields)] * 3, strict=True):
            digest = digest_of(token)
            rows[digest] = WaiterRow(session_of(token), digest, int(float(ticket)), int(now), int(share))
    kept = sorted((row for row in rows.values() if not only or row.permits in only), key=lambda row: row.ticket)
    names = await names_of(grantor, kept)
    return tuple(_waiter(row, named, grantor) for row, named in zip(kept, names, strict=True))


def _waiter(row: WaiterRow, named: Named, grantor: "RedisGrantor") -> Waiter:
    since = time_of(row.ticket)
    waiting = 0.0 if since is None else max(row.now - row.ticket, 0) / 1e6
    return Waiter(**named._asdict(), since=since, waiting=waiting, **_share(grantor, row.permits))


def time_of(micros: int) -> datetime | None:
    """Return the server's time of *micros* µs since 1970 as a datetime; None if the time is not known."""
    if micros < _FIRST_TIME:
        return None
    return datetime.fromtimestamp(micros // 10**6, UTC).replace(microsecond=micros % 10**6)


def _share(grantor: "RedisGrantor", permits: int) -> dict[str, Any]:
    if grantor.keys.family == "modes":
        return {"permits": 1, "mode": MODE_NAMES.get(permits)}
    return {"permits": permits or 1, "mode": None}


async def names_of(grantor: "RedisGrantor", rows: Sequence[HolderRow] | Sequence[WaiterRow]) -> list[Named]:
    """Return what the sessions say of each, as far as they do, and may be asked."""
    digests: dict[bytes, list[bytes]] = {}
    for row in rows:
        if row.session:
            digests.setdefault(row.session, []).append(row.digest)
    found: dict[tuple[bytes, bytes], Named] = {}
    sessions = list(digests)
    for at in range(0, len(sessions), _SESSIONS):
        some = sessions[at : at + _SESSIONS]
        answers = await asyncio.gather(*(_ask(grantor, session, digests[session]) for session in some))
        for session, (host, pid, *texts) in zip(some, answers, strict=True):
            for digest, text in zip(digests[session], texts, strict=True):
                called, _, task = (text or b"").decode(errors="replace").partition("\0")
                named = Named(
                    _text(host),
                    _number(pid),
                    called or None,
                    task or None,
                )
                found[session, digest] = named
    return [found.get((row.session, row.digest), Named()) for row in rows]


def _number(value: bytes | None) -> int | None:
    return int(value) if value and value.isdigit() and len(value) < 10 else None


def _text(value: bytes | None) -> str | None:
    return value.decode(errors="replace") or None if value else None


def _said(call: PendingCall, reply: Any) -> None:
    answers: Any = reply
    if isinstance(reply, list) and len(answers) != call.subject:
        raise ValueError
    resolve_call(call, answers)


async def _ask(grantor: "RedisGrantor", session: bytes, digests: list[bytes]) -> list[bytes | None]:
    context = grantor.context
    key = session_key(grantor.keys.channels, session)
    future: asyncio.Future[list[bytes | None]] = context.loop.create_future()
    route = context.pipeline.route(key)
    with context.keep_open():
        route.submit(_HMGET, (key, b"host", b"pid", *digests), _said, REPLY_TIMEOUT, 2 + len(digests), future)
        try:
            return await future
        except RedisError:
            return [None] * (2 + len(digests))
