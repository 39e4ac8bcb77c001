"""Runs one script at a time and gives its reply names; what tests of the scripts stand on.

Keys and arguments are passed under the names in the script's header, all of them and no others, so a header that
changes breaks every call. Holders and waiters go by short names: `token` makes a token of one, `who` reads it back.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, final

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from aiolocks._core.keys import Keys, channel_of
from aiolocks._core.modes import EXCLUSIVE
from aiolocks._redis.scripts import load

TTL = 30_000
LIFE = 3_000
"""Milliseconds: what a lease and a silent session last, unless a test says otherwise."""

SLACK = 2_000
"""Milliseconds that a busy machine may take in between."""

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

FAR = 9_000_000_000_000_000
"""A fencing token of the year 2255, just below 2^53, up to which Lua counts exactly."""

_LEFT_OUT = {"needed_s", "min_hold_ms"}
"""What need not be passed. It comes last."""

Kind = Literal["lock", "semaphore", "rwlock"]

PADDING = b" " + 30 * b"."
"""What the scripts put behind each entry; see `libraries/queue`."""

on_server = pytest.mark.parametrize("backend", [pytest.param("server", marks=pytest.mark.redis)], indirect=True)
"""For what fakeredis lacks: counted commands, a memory limit, rights."""

_REAL = pytest.param("server", False, marks=pytest.mark.redis, id="server")
_SHARDED = pytest.param("server", True, marks=pytest.mark.redis, id="sharded")
_IN_MEMORY = pytest.param("memory", False, id="memory")

told_either_way = pytest.mark.parametrize(("backend", "sharded"), [_REAL, _SHARDED, _IN_MEMORY], indirect=True)
"""For what is the same on both sorts of channels; fakeredis knows one."""

told_by_shards = pytest.mark.parametrize(("backend", "sharded"), [_SHARDED], indirect=True)
told_either_way_on_server = pytest.mark.parametrize(("backend", "sharded"), [_REAL, _SHARDED], indirect=True)


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease handed over, *amount* being its TTL; or a refusal: a fence of -1, *amount* being the limit."""

    who: str
    fence: int
    amount: int


MORE = Grant("more", -2, 0)
"""Among the grants in a reply, and as a notice: something may still be free, so ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What each long answer of a grant tells besides."""

    mine: list[Grant] = field(default_factory=list)
    limit_before: int = 0


@dataclass(frozen=True, slots=True)
class Granted(_Answer):
    fence: int


@dataclass(frozen=True, slots=True)
class Queued(_Answer):
    ticket: int
    busy_ms: int
    fence: int
    subscribers: int


@dataclass(frozen=True, slots=True)
class QueuedBeside:
    """The short answer of one that waits beside others of its session."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Busy(_Answer):
    busy_ms: int


@dataclass(frozen=True, slots=True)
class Full(_Answer):
    """As many wait as may."""

    busy_ms: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Young(_Answer):
    """The server is, for so long."""

    busy_ms: int


@dataclass(frozen=True, slots=True)
class Refused(_Answer):
    limit: int


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The request was overtaken by its own undo."""


@dataclass(frozen=True, slots=True)
class Rechecked:
    subscribers: int
    busy_ms: int
    fence: int
    passed_over: bool
    answers: list[int]
    mine: list[Grant]


@dataclass(frozen=True, slots=True)
class Released:
    ended: bool
    mine: list[Grant]


@dataclass(frozen=True, slots=True)
class Revoked:
    """For how long what was meant lasts at most; *more*: where to go on."""

    left_ms: int
    mine: list[Grant]
    more: str = ""
    hit: tuple[tuple[int, int, int], ...] = field(default=(), compare=False)
    """Of each its fencing token, ms, and permits or mode."""


@dataclass(frozen=True, slots=True)
class Statistics:
    permits: int
    holders: int
    waiting: int
    fence: int
    limit: int
    kept: int
    kept_until_ms: int
    paused_ms: int = 0


def token(who: str) -> bytes:
    """Return a token as long as real ones are: the semaphore tells its own fields from tokens by their length."""
    return who.encode().ljust(32, b"0")


def who(token: bytes) -> str:
    return token.decode().rstrip("0")


def entry(who: str, *, ttl_ms: int = TTL, permits: int = 1) -> bytes:
    """Return how a waiter stands in line."""
    return b"%b %d %d%b" % (token(who), ttl_ms, permits, PADDING)


def upgrade_of(who: str) -> str:
    """Return the name of the upgrade of a lease: its token begins with that one's."""
    return f"{token(who).decode()}+up"


def poller(interval_ms: int) -> str:
    """Return the name of a session that cannot be told and looks every so often instead."""
    return f"poll{interval_ms}-deaf"


@final
class Scripts:
    """The scripts of one name of one kind of primitive, on one server."""

    def __init__(
        self, redis: Redis, kind: Kind, *, limit: int = 1, keys: Keys | None = None, sharded: bool = False
    ) -> None:
        self.redis: Any = redis
        """Any, since what redis-py returns is typed for asyncio too."""
        self.kind = kind
        self.limit = limit
        self.family: str = "modes" if kind == "rwlock" else kind
        self.usual = EXCLUSIVE if kind == "rwlock" else 1
        """What is asked for if a test does not say: one permit, or to be alone."""
        self.keys = keys or Keys("aiolocks:", kind, "orders:42", self.family)
        self.sharded = sharded
        """Whether sessions are told over the channels of a Cluster's shards."""
        self.channels = self.keys.channels + (b"{" if sharded else b"")

    def over(self, redis: Redis) -> "Scripts":
        """Return the same name, asked for over another client."""
        return Scripts(redis, self.kind, limit=self.limit, keys=self.keys, sharded=self.sharded)

    def named(self, name: str) -> "Scripts":
        """Return another name of the same kind on the same server."""
        keys = Keys("aiolocks:", self.kind, name, self.family)
        return Scripts(self.redis, self.kind, limit=self.limit, keys=keys, sharded=self.sharded)

    def channel(self, session: str) -> bytes:
        """Return the channel on which a session is told."""
        return channel_of(self.keys.base, self.channels, session.encode())

    def key(self, field: str, *, session: str = "home", who: str = "") -> bytes:
        """Return the key that headers call *field*."""
        parts = {
            "fence": b"fence", "meta": b"meta", "queue": b"queue",
            "waiters": b"q:" + session.encode(), "tombstone": b"t:" + token(who), "highest": b"ticket",
        }  # fmt: skip
        return self.keys.base if field in {"holder", "holders"} else self.keys.part(parts[field])

    def entry(self, who: str, *, ttl_ms: int = TTL) -> bytes:
        """Return how a waiter with the usual terms stands in line."""
        return entry(who, ttl_ms=ttl_ms, permits=self.usual)

    def run(self, verb: str, *, session: str = "home", who: str = "", **args: object) -> Any:
        """Run the script of *verb*; a *session* or token that its header does not name is not passed."""
        script = load(f"{self.family}/{verb}")
        address = f"{session} {args.pop('life_ms', LIFE)} ".encode() + self.channels
        always: dict[str, object] = {"address": address, **({"token": token(who)} if who else {})}
        args = {name: value for name, value in always.items() if name in script.args} | args
        if "mode" in script.args and "permits" in args:
            args["mode"] = args.pop("permits")
        if set(args) != set(script.args) - (_LEFT_OUT - set(args)):
            raise TypeError(f"{script.name} takes {script.args}, not {tuple(args)}")
        keys = [self.key(field, session=session, who=who) for field in script.keys]
        given: list[Any] = [args[name] for name in script.args if name in args]
        values = [each for value in given for each in (value if isinstance(value, list) else [value])]
        return self.redis.execute_command("EVAL", script.source, len(keys), *keys, *values)

    def grant(
        self, who: str, *, session: str = "home", ttl_ms: int = TTL, permits: int | None = None, wait: bool = True,
        ticket: int = 0, life_ms: int = LIFE, limit: int | None = None, declare: bool = False, brief: bool = False,
        needed_s: int = 0, most: int | None = None,
    ) -> Granted | Queued | QueuedBeside | Busy | Full | Young | Refused | Withdrawn:  # fmt: skip
        """Ask; *most*: for the first time, to wait only if fewer do."""
        args: dict[str, object] = {
            "ttl_ms": ttl_ms, "permits": permits or self.usual, "life_ms": life_ms,
            "ticket": "+" if brief else ticket if wait else ~ticket,
        }  # fmt: skip
        if self.kind == "semaphore":
            args |= {"limit": self.limit if limit is None else limit, "declare": int(declare)}
        if needed_s:
            args["needed_s"] = needed_s
        if most is not None:
            args["ticket"] = f"<{most}"
        answer = self.run("grant", session=session, who=who, **args)
        assert not (isinstance(answer, int) and declare), "who declares a limit is told the one before"
        if isinstance(answer, int):  # nobody was in the way, or others of the same session are told the rest
            return Granted(answer) if answer > 0 else QueuedBeside(-answer)
        verdict, *reply = answer
        if verdict == b"withdrawn":
            return Withdrawn()
        before = 0
        if self.kind == "semaphore":
            *reply, before, in_force = reply
            assert in_force == self.limit_in_force()
        waiting = [reply.pop()] if verdict == b"full" else []
        mine = _grants(reply.pop())
        kinds: dict[bytes, Callable[..., Granted | Queued | Busy | Full | Young | Refused]] = {
            b"granted": Granted, b"queued": Queued, b"busy": Busy, b"full": Full, b"young": Young, b"refused": Refused
        }  # fmt: skip
        return kinds[verdict](*reply, *waiting, mine=mine, limit_before=before)

    def all_of(self, mine: list[Grant], *, session: str = "home") -> list[Grant]:
        """Return the grants in a reply, and those that going on for as long as it says "more" brings."""
        found = list(mine)
        while MORE in found:
            found.remove(MORE)
            found += self.recheck(session=session).mine
        return found

    def granted(self, who: str, **options: Any) -> Granted:
        """Ask for what must be granted at once."""
        answer = self.grant(who, **options)
        assert isinstance(answer, Granted), answer
        return answer

    def queued(self, who: str, **options: Any) -> Queued:
        """Ask for what must wait in line."""
        answer = self.grant(who, **options)
        assert isinstance(answer, Queued), answer
        return answer

    def full(self, who: str, most: int, **options: Any) -> Full:
        """Ask for what must be refused, as so many wait."""
        answer = self.grant(who, most=most, **options)
        assert isinstance(answer, Full), answer
        return answer

    def release(
        self, who: str, *, session: str = "home", ttl_ms: int = TTL, permits: int | None = None,
        tombstone_ms: int = 0, life_ms: int = LIFE, min_hold_ms: int = 0, waits: bool = False,
    ) -> Released:  # fmt: skip
        terms = f"{ttl_ms} {permits or self.usual}"
        args = {"terms": terms, "tombstone_ms": tombstone_ms, "life_ms": life_ms, "waits": int(waits)}
        args |= {"min_hold_ms": min_hold_ms} if min_hold_ms else {}
        answer = self.run("release", session=session, who=who, **args)
        # An int: nobody here was granted anything.
        ended, *mine = [answer] if isinstance(answer, int) else answer.split()
        assert isinstance(answer, int) or mine
        assert int(ended) in (0, 1)
        return Released(int(ended) == 1, _grants(mine))

    def recheck(self, *waiters: str | bytes, session: str = "home", life_ms: int = LIFE) -> Rechecked:
        """Ask how *waiters* stand: names with the usual terms, or whole entries."""
        entries = [self.entry(waiter) if isinstance(waiter, str) else waiter for waiter in waiters]
        asked = [entry.removesuffix(PADDING) for entry in entries]
        reply = self.run("recheck", session=session, life_ms=life_ms, entries=asked)
        subscribers, busy_ms, fence, passed_over, answers, mine, *limits = reply
        assert not limits or limits == [self.limit_in_force()]
        return Rechecked(subscribers, busy_ms, fence, passed_over == 1, answers, _grants(mine))

    def renew(self, who: str, ttl_ms: int = TTL) -> bool:
        return bool(self.run("renew", who=who, ttl_ms=ttl_ms) == 1)

    def renew_many(self, *leases: "tuple[Scripts, str, int]") -> list[bool]:
        """Renew leases of several names of this kind; of each its name, its holder and the TTL."""
        script = load(f"{self.family if self.kind == 'lock' else 'semaphore'}/renew_many")
        fields = load(f"{self.family}/renew").keys
        keys = [scripts.key(field) for scripts, _, _ in leases for field in fields]
        values = [value for _, who, ttl_ms in leases for value in (token(who), ttl_ms)]
        try:
            answers = self.redis.execute_command("EVAL", script.source, len(keys), *keys, *values)
        except ResponseError as error:
            raise AssertionError(f"one of them has failed all: {error}") from error
        assert set(answers) <= {0, 1}
        return [answer == 1 for answer in answers]

    def resize(
        self, limit: int, *, pin: int = -1, session: str = "home", life_ms: int = LIFE
    ) -> tuple[int, list[Grant]]:
        """Return the limit before, and what that freed for the asking session."""
        before, *mine = self.run("resize", session=session, limit=limit, pin=pin, life_ms=life_ms)
        return before, _grants(mine)

    def pause(self, pause_ms: int, *, session: str = "home", life_ms: int = LIFE) -> tuple[int, list[Grant]]:
        """Pause for so many ms, and return for how many it is paused; or with 0 end that, and return 1, or 0 for none.

        Also return what that freed for the asking session, or a notice when to look.
        """
        answer, *mine = self.run("pause", session=session, pause_ms=pause_ms, life_ms=life_ms)
        return answer, _grants(mine)

    def downgrade(self, who: str, mode: int, *, session: str = "home", life_ms: int = LIFE) -> tuple[bool, list[Grant]]:
        """Return whether it holds anything, and what that made room for in the asking session."""
        held, *mine = self.run("downgrade", session=session, who=who, mode=mode, life_ms=life_ms)
        return held == 1, _grants(mine)

    def revoke(
        self, first: int, last: int | None = None, *, more: str = "", force: bool = False, look: bool = False,
        session: str = "home", life_ms: int = LIFE, reason: str = "",
    ) -> Revoked:  # fmt: skip
        """Revoke the leases with these fencing tokens, or the one."""
        meant = " ".join(filter(None, [str(first), str(first if last is None else last), more]))
        tombstone_ms = -1 if look else 60_000 if force else 0
        answer, *mine = self.run(
            "revoke", session=session, meant=meant, tombstone_ms=tombstone_ms, reason=reason, life_ms=life_ms
        )
        left_ms, place, *rows = answer
        hit = tuple(zip(rows[::3], rows[1::3], rows[2::3], strict=True))
        return Revoked(left_ms, _grants(mine), place.decode(), hit)

    def hand_off(self, who: str, secret: str = "offer", *, ttl_ms: int = TTL, tombstone_ms: int = 0) -> int:
        """Offer the lease of *who* under a *secret*."""
        answer: int = self.run("hand_off", who=who, offered=token(secret), ttl_ms=ttl_ms, tombstone_ms=tombstone_ms)
        return answer

    def adopt(self, who: str, secret: str = "offer", *, ttl_ms: int = TTL) -> int:
        """Take over what is offered under a *secret*; return the fencing token, or 0."""
        fence: int = self.run("adopt", who=who, offered=token(secret), ttl_ms=ttl_ms)
        return fence

    def touch(self, secret: str = "offer", *, ttl_ms: int = TTL) -> int:
        """Extend what is offered under a *secret*; return its fencing token, 0 if it is gone, or -1 if adopted."""
        fence: int = self.run("touch", offered=token(secret), ttl_ms=ttl_ms)
        return fence

    def statistics(self) -> Statistics:
        """Ask on, as one script counts those who wait in some sessions, and drops some of the leases that ran out."""
        place, waiting = -1, 0
        answer: list[Any] = []
        while place < 0:
            answer = self.run("statistics", first=0)
            place = answer[5]
        kept, kept_until = answer[6], answer[7]
        while place > 0:
            part = self.run("statistics", first=place)
            waiting, place = waiting + part[2], part[5]
            kept, kept_until = kept + part[6], max(kept_until, part[7])
        permits, holders, first, fence, limit, *_, last = answer
        paused_ms = last if self.kind == "semaphore" else 0
        return Statistics(permits, holders, first + waiting, fence, limit, kept, kept_until, paused_ms)

    def limit_in_force(self) -> int:
        """Return what is written down: asking a script would also drop what has run out."""
        return int(self.redis.hget(self.key("meta"), "limit") or 0)


def _grants(flat: Any) -> list[Grant]:
    """Read the grants in a reply: of each its token, fencing token and TTL, in one list; or 0 for none."""
    grants = zip(flat[::3], flat[1::3], flat[2::3], strict=True) if flat else ()
    return [Grant(who(token), int(fence), int(amount)) for token, fence, amount in grants]
