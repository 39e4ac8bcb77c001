"""Reads the names that are held or awaited on a server, with their holders and waiters. Only plain reads are used.

SCAN finds the keys of a prefix, a thousand at a time, and pipelines of a few hundred commands read the names, so a big
server stays responsive. P14: of a token, only the id of its session is returned.
"""

import hashlib
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, cast, final

from .._core.keys import Keys
from .._core.kinds import KINDS
from .._core.modes import MODE_NAMES
from .._core.options import MAX_NOTE
from .._core.tokens import note_field
from ._nodes import Primaries, primaries

FAMILIES = {kind.name: kind.family for kind in KINDS if kind.leased or kind.queued}
"""The data structure of the holders, by kind."""

MOST = 100
"""Default maximum number of holders, and of waiting sessions, that are read of one name."""

COUNTED = 500
"""Maximum number of sessions of one name whose waiters are counted, the same as in the library's scripts."""

_SCANNED = 1000
_AT_ONCE = 250
"""Number of names in one pipeline."""

_SESSION, _TOKEN = 11, 33
"""Length of a session's id and of a whole token."""

_GLOB = re.compile(rb"([*?\[\]\\^])")
_ESCAPED = re.compile("%(25|7B|7D|3A)")
_MARKS = {"R": "revoked", "C": "cooling", "O": "offered"}
_PAUSE = b"pause", "pause"
"""What stands for a pause of a semaphore among its holders (W25): with either kind of client."""

ORPHANED = "orphaned"
"""The state of a holder whose lease never ends and whose session is gone (W23): no process renews or releases it."""


_Ask = Callable[[Sequence[tuple[Any, ...]]], Awaitable[list[Any]]]
"""A function that sends commands to one server and returns the answers: see `Primaries.answers`."""


@final
@dataclass(slots=True)
class Person:
    """A holder or waiter, with the details that its session has published."""

    session: str = ""
    digest: bytes = b""
    seconds: float | None = None
    """Seconds since the grant, or since the waiter joined the queue."""
    remaining: float | None = None
    """Seconds until the lease ends. None means never, or a waiter."""
    permits: int = 1
    mode: str | None = None
    fencing_token: int = 0
    state: str = ""
    endless: bool = False
    """Whether its key has no expiry."""
    host: str | None = None
    pid: int | None = None
    holder: str | None = None
    task: str | None = None
    note: str | None = None

    @property
    def called(self) -> str:
        """The holder or waiter in a few words."""
        who = f"{self.host}:{self.pid}" if self.host else self.session or "?"
        names = "/".join(filter(None, (self.holder, self.task)))
        return " ".join(filter(None, (who, names, self.state and f"({self.state})")))


@final
@dataclass(slots=True)
class Name:
    """A name that is held, awaited or paused."""

    kind: str
    name: str
    base: bytes
    holders: list[Person] = field(default_factory=list[Person])
    held: int = 0
    """Number of holders, which can be more than `holders` lists."""
    waiting: int = 0
    waiters: list[Person] = field(default_factory=list[Person])
    limit: int | None = None
    pinned: bool = False
    """Whether declarations cannot change the limit."""
    paused: float = 0.0
    """Seconds until a pause of a semaphore ends (W25)."""
    more_wait: bool = False
    """Whether more than `COUNTED` sessions wait, so that `waiting` is a lower bound."""

    @property
    def in_use(self) -> bool:
        """Whether it is held, awaited or paused."""
        return bool(self.held or self.waiting or self.paused)

    @property
    def seconds(self) -> float | None:
        """Seconds since the oldest grant."""
        return max((one.seconds for one in self.holders if one.seconds is not None), default=None)

    @property
    def remaining(self) -> float | None:
        """Seconds until the last lease ends, unless it is renewed."""
        return max((one.remaining for one in self.holders if one.remaining is not None), default=None)

    @property
    def permits(self) -> int:
        return sum(one.permits for one in self.holders)


_MAX_DIGITS = 19
"""Number of digits of the largest integer in Redis."""


def split(prefix: bytes) -> Callable[[bytes], tuple[str, str, bytes] | None]:
    """Return a function that splits the key of holders or of a queue into kind, name and base; None for other keys."""
    words = {Keys("", kind, "x").base.partition(b":")[0].decode(): kind for kind in FAMILIES}
    form = re.compile(rb"(?s)(%b(%b):\{([^{}]*)\}([^:{}]*))(?::queue)?" % (re.escape(prefix), "|".join(words).encode()))

    def parts(key: bytes) -> tuple[str, str, bytes] | None:
        found = form.fullmatch(key)
        if found is None:
            return None
        try:
            text = (found[3] + found[4]).decode()
        except UnicodeDecodeError:
            return None
        return words[found[2].decode()], _ESCAPED.sub(lambda code: chr(int(code[1], 16)), text), found[1]

    return parts


async def scan(
    there: Primaries, prefix: str, pattern: str = "*", kind: str | None = None, steps: int | None = None
) -> AsyncGenerator[list[Name]]:
    """Yield the names in pages, each name once. With *steps*, yield a page after every *steps* SCANs, even if empty."""
    parts, known = split(prefix.encode()), set[bytes]()
    match = _GLOB.sub(rb"\\\1", prefix.encode()) + b"*"
    page: list[Name] = []
    for node in there.nodes:
        cursor, done = 0, 0
        while cursor or not done:
            cursor, keys = await node.execute_command("SCAN", cursor, "MATCH", match, "COUNT", _SCANNED)
            cursor, done = int(cursor), done + 1
            for key in keys:
                found = parts(key if isinstance(key, bytes) else key.encode())
                if found and found[2] not in known and kind in (None, found[0]) and fnmatchcase(found[1], pattern):
                    known.add(found[2])
                    page.append(Name(*found))
            if len(page) >= _SCANNED or (steps and done % steps == 0):
                yield page
                page = []
    yield page


async def named(
    url: str, prefix: str, name: str, kind: str | None, *, most: int = MOST, waiters: bool = False
) -> list[Name]:
    """Read *name* of one kind, or of every kind, from the server at *url*: see `read`.

    Raises:
        Unusable: The server cannot be asked.
    """
    kinds = [kind] if kind else list(FAMILIES)
    names = [Name(one, name, Keys(prefix, one, name, path=one == "hierarchy").base) for one in kinds]
    async with primaries(url) as there:
        for one in names:
            there.require(one.base)
        await read(there, names, prefix, most=most, waiters=waiters)
    return names


async def read(
    there: Primaries, names: Sequence[Name], prefix: str, *, most: int = MOST, waiters: bool = False
) -> None:
    """Fill in the holders of *names* and the number of waiters; with *waiters*, the waiters too.

    If the server of a name does not answer, the name has no holders and no waiters.
    """
    for node, of_node in there.grouped(names, lambda name: name.base):
        if node is None:
            for name in of_node:
                name.holders, name.held, name.waiters, name.waiting, name.paused = [], 0, [], 0, 0.0
            continue
        for at in range(0, len(of_node), _AT_ONCE):
            page = of_node[at : at + _AT_ONCE]
            ask = partial(there.answers, node)
            seconds, micros = await node.time()
            now = float(seconds) + float(micros) / 1e6
            await _holders(ask, page, now, most)
            await _waiting(ask, page, now, most, waiters)
            people = [one for name in page for one in (*name.holders, *name.waiters)]
            await _add_details(there, people, prefix)
            for one in people:
                if one.endless and one.session and one.host is None and not one.state:
                    one.state = ORPHANED


async def _holders(ask: _Ask, page: Sequence[Name], now: float, most: int) -> None:
    asked = list[tuple[Any, ...]]()
    for name in page:
        if FAMILIES[name.kind] == "lock":
            asked += (("GET", name.base), ("PTTL", name.base))
        else:
            after = f"({int(1000 * now)}"
            asked += (
                ("ZRANGEBYSCORE", name.base, after, "+inf", "WITHSCORES", "LIMIT", 0, most + 1),
                ("ZCOUNT", name.base, after, "+inf"),
                ("ZSCORE", name.base, _PAUSE[0]),
            )
    answers = iter(await ask(asked))
    sets = list[tuple[Name, list[tuple[bytes, float]]]]()
    for name in page:
        first, second = next(answers), next(answers)
        name.holders, name.held = [], 0
        if FAMILIES[name.kind] != "lock":
            ends = next(answers)
            if isinstance(second, int):
                name.paused = max(float(ends) / 1000 - now, 0.0) if isinstance(ends, (bytes, str, float)) else 0.0
                name.held = second - bool(name.paused)
                sets.append((name, [one for one in _scored(_list(first)) if one[0] not in _PAUSE][:most]))
        elif isinstance(first, (bytes, str)):
            token, fence, mark = _words(first)
            one = _person(token, fence, mark, now)
            one.remaining = second / 1000 if isinstance(second, int) and second >= 0 else None
            one.endless = second == -1
            name.holders, name.held = [one], 1
    asked = [("HMGET", name.base + b":meta", "limit", *(token for token, _ in scored)) for name, scored in sets]
    for (name, scored), answer in zip(sets, await ask(asked), strict=True):
        values = _list(answer) or [None] * (1 + len(scored))
        limit = _text(values[0] or b"")
        name.limit, name.pinned = _number(limit.removeprefix("+")) or None, limit.startswith("+")
        for (token, ends), known in zip(scored, values[1:], strict=True):
            share, fence, mark = _words(known or b"1 0")
            one = _person(token, fence, mark, now)
            one.remaining = ends / 1000 - now
            if FAMILIES[name.kind] == "modes":
                one.mode = MODE_NAMES.get(_number(share))
            else:
                one.permits = _number(share)
            name.holders.append(one)


async def _waiting(ask: _Ask, page: Sequence[Name], now: float, most: int, waiters: bool) -> None:
    """Count the waiters of all sessions. With *waiters*, list up to *most* waiters of the first *most* sessions."""
    answers = await ask([("ZRANGE", name.base + b":queue", 0, COUNTED) for name in page])
    asked, of = list[tuple[Any, ...]](), list[Name]()
    for name, answer in zip(page, answers, strict=True):
        sessions = _list(answer)
        name.waiting, name.waiters, name.more_wait = 0, [], len(sessions) > COUNTED
        for at, session in enumerate(sessions[:COUNTED]):
            queue = name.base + b":q:" + (session if isinstance(session, bytes) else session.encode())
            asked.append(("ZCARD", queue))
            of.append(name)
            if waiters and at < most:
                asked.append(("ZRANGE", queue, 0, most - 1, "WITHSCORES"))
                of.append(name)
    for name, answer in zip(of, await ask(asked), strict=True):
        if isinstance(answer, int):
            name.waiting += answer
        else:
            name.waiters += [_waiter(name, entry, ticket, now) for entry, ticket in _scored(_list(answer))]
    for name in page:
        name.waiters.sort(key=lambda one: -(one.seconds or 0))
        del name.waiters[most:]


def _waiter(name: Name, entry: bytes, ticket: float, now: float) -> Person:
    token, _, share, *_ = [*entry.split(), b"", b"", b"1"]
    one = _person(token, b"%.0f" % ticket, "", now)
    one.fencing_token = 0
    if FAMILIES[name.kind] == "modes":
        one.mode = MODE_NAMES.get(_number(share))
    else:
        one.permits = _number(share)
    return one


async def _add_details(there: Primaries, people: Iterable[Person], prefix: str) -> None:
    """Add the details that sessions publish. On a Cluster, a session's key may be on another node than the name."""
    by_session = dict[str, list[Person]]()
    for one in people:
        if one.session:
            by_session.setdefault(one.session, []).append(one)

    def key(session: str) -> bytes:
        return f"{prefix}session:{session}".encode()

    for node, sessions in there.grouped(by_session, key):
        if node is None:
            continue
        asked = [
            ("HMGET", key(session), "host", "pid", *(field for one in by_session[session] for field in _fields(one)))
            for session in sessions
        ]
        for session, answer in zip(sessions, await there.answers(node, asked), strict=True):
            _add_session(by_session[session], _list(answer))


def _fields(one: Person) -> tuple[bytes, bytes]:
    return one.digest, note_field(one.digest)


def _add_session(people: Iterable[Person], answer: Sequence[Any]) -> None:
    if not answer:
        return
    host, pid, *called = [None if text is None else _text(text) for text in answer]
    for one, text, note in zip(people, called[::2], called[1::2], strict=True):
        one.host, one.pid = host or None, _number(pid) if pid else None
        holder, _, task = (text or "").partition("\0")
        one.holder, one.task = holder or None, task or None
        one.note = (note or "")[:MAX_NOTE] or None


def _list(answer: Any) -> list[Any]:
    """Return *answer* if it is a list, or an empty list if it is an error."""
    return list(cast("Sequence[Any]", answer)) if isinstance(answer, list) else []


def _scored(answer: Sequence[Any]) -> list[tuple[bytes, float]]:
    """Return members with their scores, from the form of RESP 2 or RESP 3."""
    if answer and isinstance(answer[0], (list, tuple)):
        return [(member, float(score)) for member, score in answer]
    return [(answer[at], float(answer[at + 1])) for at in range(0, len(answer), 2)]


def _words(value: bytes | str) -> tuple[bytes, bytes, str]:
    """Return the first three words of a holder's value: token or share, fencing token, mark."""
    words = (value if isinstance(value, bytes) else value.encode()).split()[:3]
    first, second, mark = [*words, *(b"", b"0", b"")[len(words) :]]
    return first, second, mark.decode(errors="replace")


def _person(token: bytes, fence: bytes, mark: str, now: float) -> Person:
    ours = len(token) >= _TOKEN
    number = _number(fence)
    since = now - number / 1e6
    return Person(
        session=token[:_SESSION].decode(errors="replace") if ours else "",
        digest=hashlib.sha1(token[_SESSION:], usedforsecurity=False).hexdigest()[:16].encode() if ours else b"",
        seconds=max(since, 0.0) if number > 1e15 else None,
        fencing_token=number,
        state=_MARKS.get(mark, ""),
    )


def _number(text: Any) -> int:
    """Return *text* as a number, or 0 if it is none: any client can write anything."""
    digits = b"" if text is None else text if isinstance(text, bytes) else str(text).encode()
    return int(digits) if digits.isdigit() and len(digits) <= _MAX_DIGITS else 0


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def as_json(name: Name, *, waiters: bool = False) -> Mapping[str, Any]:
    """Return *name* in the form for JSON."""
    found: dict[str, Any] = {
        "kind": name.kind, "name": name.name, "held": name.held, "waiting": name.waiting, "more_wait": name.more_wait,
        "seconds": _rounded(name.seconds), "remaining": _rounded(name.remaining), "limit": name.limit,
        "pinned": name.pinned, "paused": round(name.paused, 3),
        "holders": [
            {**_as_json(one), "remaining": _rounded(one.remaining), "fencing_token": one.fencing_token,
             "state": one.state or "held"}
            for one in name.holders
        ],
    }  # fmt: skip
    if waiters:
        found["waiters"] = [{**_as_json(one), "position": at} for at, one in enumerate(name.waiters)]
    return found


def _as_json(one: Person) -> dict[str, Any]:
    return {
        "host": one.host, "pid": one.pid, "holder": one.holder, "task": one.task, "session": one.session or None,
        "seconds": _rounded(one.seconds), "permits": one.permits, "mode": one.mode, "note": one.note,
    }  # fmt: skip


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None or math.isinf(seconds) else round(seconds, 3)
