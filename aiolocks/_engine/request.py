"""One request for a lease: its terms, and the answers of the server so far. Pure: it sends nothing.

`Phase` says how far it has come:

| phase    | what the server knows of its token       | goes on by                                             |
| -------- | ---------------------------------------- | ------------------------------------------------------ |
| NEW      | nothing                                  | `sent`                                                 |
| SENT     | perhaps something: no answer has come    | an answer; `not_run`, back to NEW                      |
| ANSWERED | it has answered, and granted nothing     | another attempt                                        |
| QUEUED   | a place in the queue                     | `grant`, by a message or a re-check                    |
| GRANTED  | a lease                                  | `was_revoked`; `new_turn`, back to ANSWERED            |
| REVOKED  | a lease that is not renewed any more     |                                                        |

Answers come late and in any order, so a phase only goes forward, except by the two moves back. `Phase` is therefore an
ordered enum and `MOVES` lists what can follow; an answer to an earlier attempt changes nothing.

`give_up` ends the wait in any phase. An attempt that is on its way may be carried out in any phase, so an undo is over
only when that cannot be any more. The one rule: a grant counts from the newest request of which it is certain that it
left before the grant.
"""

import asyncio
import enum
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, final

from redis.exceptions import RedisError

from .._core.answers import resolve
from .._core.errors import LimitMismatchError, LockError
from .._core.options import MAX_NOTE
from .._core.timing import deadline, recheck_interval
from .._core.tokens import fresh_token, session_of
from .._core.untyped import Future, make_tuple
from .._core.values import printable
from .._redis.pipeline import PendingCall
from .extension import Extension

LONGEST_RETRY = 60.0
"""Seconds within which a request sent over a lost connection may still reach Redis; tombstones last at least that."""

A_DAY = 86_400_000_000
"""Maximum number of µs by which a fencing token is ahead of the server's time, or of the fencing token before it."""

_FIRST_TIME = 10**15
"""Tickets and fencing tokens are µs since 1970, except tickets that pass the queue."""

ENDLESS = -1
"""Stands in place of a lease's ms if the lease has no expiry, or its expiry is not known."""


class Granted(NamedTuple):
    """A lease began, no earlier than local time *valid_from*."""

    fence: int
    valid_from: float


@final
class Queued:
    """The request waits in line; its `turn` tells when that ends."""

    __slots__ = ()


class Busy(NamedTuple):
    """Not granted and not queued: the request does not wait, or its queue is full.

    *young*: True if the only reason is that the server has not been up long enough.
    """

    young: bool = False


Answer = Granted | Queued | Busy


class Full(NamedTuple):
    """A queue in which a newcomer finds no room (W26), and the seconds that the current lease lasts at least."""

    waiting: int
    seconds: float


class WithdrawnError(RedisError):
    """Nothing is granted to this token any more: its lease was revoked before its holder heard of it."""


class Phase(enum.IntEnum):
    """How far a request has come; see the module."""

    NEW = 0
    SENT = 1
    ANSWERED = 2
    QUEUED = 3
    GRANTED = 4
    REVOKED = 5


MOVES: Mapping[Phase, tuple[Phase, ...]] = {
    Phase.NEW: (Phase.SENT, Phase.ANSWERED),
    Phase.SENT: (Phase.NEW, Phase.ANSWERED, Phase.QUEUED, Phase.GRANTED, Phase.REVOKED),
    Phase.ANSWERED: (Phase.QUEUED, Phase.GRANTED, Phase.REVOKED),
    Phase.QUEUED: (Phase.GRANTED, Phase.REVOKED),
    Phase.GRANTED: (Phase.ANSWERED, Phase.REVOKED),
    Phase.REVOKED: (),
}
"""Which phase can follow which. Only parts are sent, so the whole is ANSWERED without being SENT."""

_NEW, _SENT, _ANSWERED, _QUEUED, _GRANTED = list(Phase)[:5]  # looked up in half the time


class Terms:
    """The length and the permits that a caller asks for. A class with slots, which are read in a third of the time."""

    __slots__ = ("late_after", "permits", "recheck", "text", "ttl", "ttl_ms", "valid_for")

    def __init__(self, ttl: float, permits: int) -> None:
        self.ttl_ms = round(ttl * 1000)
        self.ttl = self.ttl_ms / 1000  # seconds that the lease lasts on the server
        self.valid_for = deadline(0.0, self.ttl)  # seconds of it for which the holder may act
        self.late_after = self.valid_for - self.ttl / 2  # seconds after which less than half of the TTL is left
        self.permits = permits  # number of permits, or a mode
        self.text = b"%d %d" % (self.ttl_ms, permits)  # both as they stand in the queue
        self.recheck = recheck_interval(self.ttl)  # longest interval between two re-checks of a waiter, in seconds


_terms = lru_cache(maxsize=64)(Terms)


class Place(NamedTuple):
    """The place in the queue, by the newest answer."""

    ticket: int  # its number in the queue, or 0
    fence: int = 0  # the last fencing token that any caller had been granted when the server gave that answer
    session: bytes = b""  # the name under which the session asked, and so has its queue; empty if it does not wait


_NOWHERE = Place(0)


@final
class Request:
    """What one acquisition asks for, and its `turn`: the grant, or why there will be none.

    Its state is `phase`, and the attempts that are `unanswered`. Invariant: `turn` is resolved once at most.
    """

    __slots__ = (
        "__weakref__", "asked_at", "awaited", "extensions", "obstacle", "parts", "phase", "place", "server",
        "silences", "terms", "token", "unanswered", "valid_from", "wait",
    )  # fmt: skip

    def __init__(
        self, ttl: float, permits: int, wait: bool, token: bytes | None = None, ticket: int = 0,
        extensions: tuple[Extension, ...] = (),
    ) -> None:  # fmt: skip
        self.token = token or fresh_token()
        self.terms = _terms(ttl, permits)
        self.wait = wait
        self.phase = _NEW
        self.awaited: asyncio.Future[Granted] | None = None
        """The `turn`, once a caller has looked at it."""
        self.place = Place(ticket) if ticket else _NOWHERE
        self.extensions = extensions
        """The options that it carries, in the order of their arguments."""
        self.parts: Sequence[Any] = ()
        """Of a composite Grantor, which alone knows what they are."""
        self.unanswered: tuple[PendingCall, ...] = ()
        """Attempts, oldest first."""
        self.asked_at: float | None = None
        """When the first attempt left; after `ask_again`, the first attempt since then."""
        self.valid_from: float | None = None
        """When a request left whose answer shows that no grant before it counts."""
        self.obstacle: float | Full | Exception | None = None
        """What the last answer said is in the way: another lease, by the seconds that it lasts at least (`math.inf` if
        it has no end); a full queue; or the trouble with Redis."""
        self.silences = 0
        """Undos that left and were not answered: one of them may have been carried out."""
        self.server: Any = None
        """The grantor that asks one server for it. A message can overtake the answer, and finds it by this."""

    @property
    def turn(self) -> "asyncio.Future[Granted]":
        """The grant, for a caller that has to wait for it; most do not."""
        turn = self.awaited
        if turn is None:
            turn = self.awaited = asyncio.get_running_loop().create_future()
        return turn

    @property
    def reached(self) -> bool:
        """Whether Redis has answered, so that there may be something to undo."""
        return self.phase >= _ANSWERED

    @property
    def revoked(self) -> bool:
        """Whether the server has said that its lease is, or that of a part."""
        return self.phase is Phase.REVOKED

    @property
    def note(self) -> str:
        """What the lease is for, or an empty text."""
        return next((extension.note for extension in self.extensions if extension.note), "")

    @property
    def why_revoked(self) -> str:
        """Why the server has said that its lease is revoked, if that is known; else an empty text."""
        return str(self.obstacle) if self.revoked and isinstance(self.obstacle, WithdrawnError) else ""

    @property
    def retry_after(self) -> float | None:
        """Seconds that another lease lasts at least; None if no other lease is known."""
        obstacle = self.obstacle
        if isinstance(obstacle, Full):
            return obstacle.seconds
        return None if isinstance(obstacle, Exception) else obstacle

    @property
    def tried(self) -> bool:
        """Whether an attempt was made before."""
        return self.phase >= _ANSWERED or bool(self.unanswered)  # defect: W5-tried

    @property
    def silent_attempts(self) -> int:
        """Number of unanswered attempts whose link was closed for its silence: a wait that was too short, perhaps."""
        return sum(call.met_silence for call in self.unanswered)

    @property
    def undo_for(self) -> float:
        """Seconds for which an undo is worth trying: what is on the server already ends with its TTL."""
        ttl = self.terms.ttl
        return max(ttl, LONGEST_RETRY) if self.unanswered else ttl  # defect: W10-undo-for

    def _move(self, phase: Phase) -> None:
        """Go forward to *phase*, unless it has come further."""
        if phase > self.phase:
            if phase not in MOVES[self.phase]:
                raise RuntimeError(f"a request that is {self.phase.name} cannot become {phase.name}")
            self.phase = phase

    def give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the wait for the turn."""
        if self.awaited is None:
            self.awaited = loop.create_future()
        self.awaited.cancel()

    def may_wait(self) -> None:
        self.wait = True

    def ask_again(self) -> None:
        """Prepare to ask again, without waiting. The time without an answer counts from the next attempt."""
        self.wait, self.asked_at = False, None

    def carry(self, extensions: tuple[Extension, ...]) -> None:
        self.extensions = extensions

    def divide(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def change_mode(self, mode: int) -> None:
        self.terms = _terms(self.terms.ttl, mode)

    def queue_terms(self) -> bytes:
        """Return what stands behind its token in the queue."""
        terms = self.terms.text
        for extension in self.extensions:
            terms += extension.queue_word()
        return terms

    def entry(self) -> bytes:
        """Return how it stands in the queue."""
        return b"%b %b" % (self.token, self.queue_terms())

    def part(
        self, permits: int, wait: bool, token: bytes, ticket: int = 0, own: tuple[Extension, ...] = ()
    ) -> "Request":
        """Return a request for a part of the lease, with the options that parts carry, and some of its *own*."""
        shared = tuple(extension for extension in self.extensions if extension.for_parts)
        return Request(self.terms.ttl, permits, wait, token, ticket, (*shared, *own))

    def sent(self, call: PendingCall, server: Any = None) -> None:
        """Note an attempt, and the grantor that asks its *server* by it."""
        self.server = server or self.server
        if self.asked_at is None:
            self.asked_at = call.sent_at
        self.unanswered += (call,)
        if self.phase is _NEW:  # as nearly always; the move is legal
            self.phase = _SENT

    def not_run(self, call: PendingCall) -> None:
        """Note that this attempt was not carried out, and will not be."""
        self.unanswered = tuple(other for other in self.unanswered if other is not call)
        if self.phase is _SENT and not self.unanswered:
            self.phase = Phase.NEW

    def answered(self, call: PendingCall) -> None:
        self.unanswered = (
            # equivalent: >=, for speed
            tuple(other for other in self.unanswered if other is not call) if len(self.unanswered) > 1 else ()
        )
        if call.link is not None:
            if self.phase is _SENT:  # as nearly always; the move is legal
                self.phase = _ANSWERED
            else:
                self._move(_ANSWERED)

    def unread(self, call: PendingCall) -> None:
        """Note that the answer to this attempt cannot be read: it may have been carried out, or not."""
        self.unanswered = tuple(sorted((*self.unanswered, call), key=lambda attempt: attempt.sent_at))

    def granted(self, call: PendingCall) -> None:
        """Note that this very attempt was granted."""
        if self.phase is _SENT:  # as nearly always; the move is legal
            self.phase = _GRANTED
        else:
            self._move(_GRANTED)
        self.valid_from = call.sent_at
        if len(self.unanswered) > 1:  # equivalent: comparison, for speed
            self.answered(call)
        else:
            self.unanswered = ()

    def queued(self, ticket: int, valid_from: float, fence: int, session: bytes) -> None:
        """Note an answer that this token waits: any grant comes after that request left."""
        if self.phase is _ANSWERED:  # as nearly always; the move is legal
            self.phase = _QUEUED
        else:
            self._move(_QUEUED)
        self.place = Place(ticket, max(self.place.fence, fence), session)
        self.left_at(valid_from)

    def busy_for(self, seconds: float | None) -> None:
        """Note how long the other holder's lease lasts at least; it can be infinite. None: no other lease is known."""
        self.obstacle = seconds
        if self.extensions and seconds is not None:
            for extension in self.extensions:
                extension.on_busy(self)

    def busy_for_ms(self, busy_ms: int, waiting: int | None = None) -> None:
        """Note a script's answer about the other holder's lease: its ms, `ENDLESS`, or less if none is known.

        *waiting*: it may not wait, as so many do already.
        """
        seconds = math.inf if busy_ms == ENDLESS else max(busy_ms, 0) / 1000
        if waiting is not None:
            self.obstacle = Full(waiting, seconds)
            return
        self.obstacle = seconds
        if self.extensions:  # as `busy_for` does, for speed
            self.busy_for(seconds)

    def refused_as(self, part: "Request") -> None:
        """Note what refuses a *part*, so that it does not wait."""
        self.obstacle = part.obstacle

    def in_trouble(self, trouble: Exception) -> None:
        """Note why its parts could not be had."""
        self.obstacle = trouble

    def was_reached(self) -> None:
        """Note that Redis has answered, to a part of it perhaps."""
        self._move(_ANSWERED)

    def was_revoked(self, why: str = "") -> None:
        """Note that the server refuses to renew it, and *why* if that is known. Known in any thread."""
        if why:
            self.obstacle = WithdrawnError(why)
        self._move(Phase.REVOKED)

    def undo_unanswered(self) -> None:
        self.silences += 1

    def again(self) -> "Request":
        """Return the same request under a new token, at the old place in line."""
        stem, plus, _ = self.token.rpartition(b"+")  # an upgrade's token begins with that of the lease it grew from
        token = stem + plus + fresh_token(session_of(self.token))
        extensions = self.admitted() if self.wait and self.reached else self.extensions  # defect: W26-again
        return Request(self.terms.ttl, self.terms.permits, self.wait, token, self.place.ticket, extensions)

    def admitted(self) -> tuple[Extension, ...]:
        """W26: return the options of a request that was granted or queued: from now on no queue is too full for it."""
        return tuple(extension for extension in self.extensions if not extension.newcomer)

    def new_turn(self) -> None:
        """Before asking once more for a lease that was granted a while ago: it may have lapsed."""
        self.extensions = self.admitted()  # defect: W26-granted
        self.phase = _ANSWERED
        self.awaited = None
        _ = self.turn  # of its own: what the asking ends with and what the waiting ends with must not be mixed up

    def wait_by(self, asked: Future) -> bool:
        """Make *asked*, the future of the answer, the turn as well; say whether that was done.

        A caller told "queued" would only wait again, so it stays asleep: the same future gets the grant. One that has
        looked at the `turn` before has another future there, and is told the answer.
        """
        if self.awaited is None:
            self.awaited = asked
        return self.awaited is asked

    def grant(self, fence: int, valid_from: float | None = None) -> bool:
        """Resolve the turn, unless it is resolved or the news are older than an answer that this token waits."""
        turn = self.awaited or self.turn
        if turn.done():
            return False
        if valid_from is None:
            if fence <= self.place.fence:  # defect: W5-stale
                return False
            if self.valid_from is None and not self.unanswered:
                return False  # it was never asked for, or it is not in line
            # defect: P1-handed-over
            valid_from = self.unanswered[0].sent_at if self.valid_from is None else self.valid_from
        if self.phase is _QUEUED:  # as nearly always; the move is legal
            self.phase = _GRANTED
        else:
            self._move(_GRANTED)
        turn.set_result(make_tuple(Granted, (fence, valid_from)))
        return True

    def far_behind(self, fence: int, now: float) -> bool:
        """Whether *fence* is more than a day ahead of the server's time, which is estimated for the local time *now*.

        The estimate starts from the newest "queued" answer: from the last fencing token in it, or from the ticket,
        which is the server's time of queueing. A message that overtakes that answer is compared with this host's time.
        """
        known = max(self.place[:2])
        if known < _FIRST_TIME:
            known = time.time_ns() // 1000
        waited = 0.0 if self.asked_at is None else now - self.asked_at
        return fence > known + A_DAY + 1_000_000 * waited

    def server_time(self, now: float) -> float:
        """Return the server's time in µs, estimated for the local time *now*.

        A ticket is the server's time of queueing, soon after the request left. Without one, this host's time is as good
        as any.
        """
        each: list[Request] = [self, *(part.request for part in self.parts)]
        queued = [one for one in each if one.asked_at is not None and one.place.ticket >= _FIRST_TIME]
        ahead = min((one.place.ticket - 1_000_000 * (one.asked_at or 0.0) for one in queued), default=None)
        return time.time_ns() / 1000 if ahead is None else ahead + 1_000_000 * now

    def begin_lease(self) -> None:
        """Note that the caller has the lease: it carries from now on what its extensions say."""
        asked, self.extensions = self.extensions, ()
        for extension in asked:
            carried = extension.held()
            if carried is not None:
                self.extensions += (carried,)
        for part in self.parts:
            part.request.begin_lease()

    def regranted(self) -> None:
        """Note that it was granted again, with another fencing token; see `Extension.on_regrant`."""
        for extension in self.extensions:
            extension.on_regrant()

    def undone(self, *, ended: bool) -> None:
        for extension in self.extensions:
            extension.on_undone(self, ended=ended)

    def refused(self, kind: str, name: str, limit: int) -> LockError:
        """Return what to raise when this can never be granted: by what the primitive says, or as there is a limit."""
        for extension in self.extensions:
            refusal = extension.refusal(limit)
            if refusal is not None:
                return refusal
        permits = self.terms.permits
        return LimitMismatchError(
            f"{kind} {name!r}: {permits} permits asked for, but its limit is {limit}; ask for fewer, or resize it",
            name=name, permits=permits, limit=limit,
        )  # fmt: skip

    def left_at(self, valid_from: float) -> None:
        self.valid_from = valid_from if self.valid_from is None else max(self.valid_from, valid_from)

    def fail(self, error: Exception) -> None:
        resolve(self.turn, error)

    def __repr__(self) -> str:
        return f"<Request {self.phase.name.lower()}{' given up' if self.awaited and self.awaited.cancelled() else ''}>"


def says_revoked(reply: object, number: int = -1) -> bool:
    """Whether a script says that the lease is revoked: by *number*, or by R and the reason."""
    return (type(reply) is int and reply == number) or (isinstance(reply, bytes) and reply.startswith(b"R"))


def reason_in(reply: object) -> str:
    """Return the reason in such a reply, fit to be shown; empty if there is none."""
    return printable(reply[1:].decode(errors="replace")[:MAX_NOTE]) if isinstance(reply, bytes) else ""


ResultCallback = Callable[[bool | Exception], None]
"""Gets an answer, or why there is none."""
