"""One acquisition from its first request to its release: what was asked, and what is known of the answers.

Pure state. The caller sets its terms (`permits`, `wait`, `parts`, `extension`); the rest its own methods alone change:

| state      | known by                           | ends with                                                  |
| ---------- | ---------------------------------- | ---------------------------------------------------------- |
| new        | neither `unanswered` nor `reached` | `sent`                                                     |
| on its way | `unanswered`                       | an answer to each attempt, or `not_run`: back to before    |
| in line    | `reached`, its `turn` is not done  | `grant` or `fail`                                          |
| granted    | an answer or the `turn` says so    | the lease's release or loss; `new_turn`, to ask once more  |
| given up   | `give_up`, in line or on its way   | never; `again` is the same under a new token               |

An attempt that is on its way may be carried out in any state, so an undo is over only when that cannot be any more.
The one rule: a grant counts from the newest request of which it is certain that it left before the grant.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, final

from redis.exceptions import RedisError

from .._core.errors import LimitMismatchError, LockError
from .._core.timing import deadline
from .._core.tokens import fresh_token, session_of
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


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits in line; its `turn` tells when that ends."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Not granted and not queued. *young*: as the server has not been up for long enough, and that alone."""

    young: bool = False


Answer = Granted | Queued | Busy


class WithdrawnError(RedisError):
    """Nothing is granted to this token any more: its lease was revoked before its holder heard of it."""


@lru_cache(maxsize=64)
def _terms(ttl: float) -> tuple[int, float, float]:
    """Return a TTL in ms as the server is told it, the same in seconds, and for how much of it a holder may act."""
    ttl_ms = round(ttl * 1000)
    return ttl_ms, ttl_ms / 1000, deadline(0.0, ttl_ms / 1000)


@lru_cache(maxsize=64)
def _queue_terms(ttl_ms: int, permits: int) -> bytes:
    return b"%d %d" % (ttl_ms, permits)


@final
class Request:
    """What one acquisition asks for, and its `turn`: the grant, or why there will be none.

    Its `permits` are a number of permits, or of whatever the primitive calls so: a read-write lock its modes.
    """

    __slots__ = (
        "__weakref__", "_given_up", "_turn", "asked_as", "asked_at", "extensions", "failing_since", "fence_seen",
        "min_hold_ms", "on_busy", "overtook", "parts", "permits", "reached", "retry_after", "revoked",
        "server", "silences", "ticket", "token", "trouble", "ttl", "ttl_ms", "unanswered", "valid_for", "valid_from",
        "wait",
    )  # fmt: skip

    def __init__(
        self,
        ttl: float,
        permits: int,
        wait: bool,
        token: bytes | None = None,
        ticket: int = 0,
        extensions: tuple[Extension, ...] = (),
    ) -> None:
        self.token = token or fresh_token()
        self.ttl_ms, self.ttl, self.valid_for = _terms(ttl)
        self.permits = permits
        self.wait = wait
        self._turn: asyncio.Future[Granted] | None = None
        self._given_up = False
        self.ticket = ticket
        self.extensions = extensions
        """The options that it carries, in the order of their arguments."""
        self.min_hold_ms = 0
        """For how long from its grant on it is in the way of others, though it is released earlier."""
        self.asked_at: float | None = None
        self.valid_from: float | None = None
        self.fence_seen = 0
        self.retry_after: float | None = None
        self.unanswered: tuple[PendingCall, ...] = ()
        """Attempts, oldest first."""
        self.silences = 0
        """Undos that left and were not answered: one of them may have been carried out."""
        self.failing_since: float | None = None
        """Since when asking anew for a forgotten place has failed, without a break."""
        self.reached = False
        """Redis has answered, so that there may be something to undo."""
        self.asked_as: bytes | None = None
        """The name under which the session has asked for it last: in that one's line it stands, if it waits."""
        self.server: Any = None
        """The grantor that asks one server for it: whom to tell of a turn that overtakes the answer."""
        self.overtook = False
        """It was asked once more, as it had overtaken a release."""
        self.revoked = False
        """The server, or one of its parts', has said that its lease is; known in any thread."""
        self.parts: Sequence[Any] = ()
        """Of a composite Grantor, which alone knows what they are."""
        self.trouble: Exception | None = None
        """Why its parts could not be granted at the last attempt."""
        self.on_busy: Callable[[], None] | None = None

    @property
    def turn(self) -> "asyncio.Future[Granted]":
        """The grant, for a caller that has to wait for it; most do not."""
        turn = self._turn
        if turn is None:
            turn = self._turn = asyncio.get_running_loop().create_future()
            if self._given_up:
                turn.cancel()
        return turn

    @property
    def tried(self) -> bool:
        """Whether an attempt was made before."""
        return self.reached or bool(self.unanswered)  # defect: W5-tried

    @property
    def undo_for(self) -> float:
        """Seconds for which an undo is worth trying: what is on the server already ends with its TTL."""
        return max(self.ttl, LONGEST_RETRY) if self.unanswered else self.ttl  # defect: W10-undo-for

    def give_up(self) -> None:
        """End the wait for the turn."""
        self._given_up = True
        if self._turn is not None:
            self._turn.cancel()

    def queue_terms(self) -> bytes:
        """Return what stands behind its token in the queue."""
        terms = _queue_terms(self.ttl_ms, self.permits)
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
        return Request(self.ttl, permits, wait, token, ticket, (*shared, *own))

    def sent(self, call: PendingCall) -> None:
        if self.asked_at is None:
            self.asked_at = call.sent_at
        self.unanswered += (call,)

    def not_run(self, call: PendingCall) -> None:
        """Note that this attempt was not carried out, and will not be."""
        self.unanswered = tuple(other for other in self.unanswered if other is not call)

    def answered(self, call: PendingCall) -> None:
        self.unanswered = (
            # equivalent: >=, for speed
            tuple(other for other in self.unanswered if other is not call) if len(self.unanswered) > 1 else ()
        )
        self.reached = self.reached or call.link is not None

    def unread(self, call: PendingCall) -> None:
        """Note that the answer to this attempt cannot be read: it may have been carried out, or not."""
        self.unanswered = tuple(sorted((*self.unanswered, call), key=lambda attempt: attempt.sent_at))

    def granted(self, call: PendingCall) -> None:
        """Note that this very attempt was granted."""
        self.reached = True
        self.valid_from = call.sent_at
        if len(self.unanswered) > 1:  # equivalent: comparison, for speed
            self.answered(call)
        else:
            self.unanswered = ()

    def queued(self, ticket: int, valid_from: float, fence_seen: int) -> None:
        """Note an answer that this token waits: any grant comes after that request left."""
        self.ticket = ticket
        self.failing_since = None
        self.left_at(valid_from)
        self.fence_seen = max(self.fence_seen, fence_seen)

    def busy_for(self, seconds: float | None) -> None:
        """Note how long the other holder's lease lasts at least; it can be infinite. None: no other lease is known."""
        self.retry_after = seconds
        if self.on_busy is not None and seconds is not None:
            on_busy, self.on_busy = self.on_busy, None
            on_busy()

    def busy_for_ms(self, busy_ms: int) -> None:
        """Note a script's answer about the other holder's lease: its ms, `ENDLESS`, or less if none is known."""
        self.busy_for(math.inf if busy_ms == ENDLESS else max(busy_ms, 0) / 1000)

    def call_when_busy(self, callback: Callable[[], None] | None) -> None:
        """Call *callback* once others are known to be in the way; None: no longer."""
        self.on_busy = callback

    def was_reached(self) -> None:
        """Note that Redis has answered, to a part of it perhaps."""
        self.reached = True

    def was_revoked(self) -> None:
        """Note that the server refuses to renew it."""
        self.revoked = True

    def keep_for(self, min_hold_ms: int) -> None:
        """Note for how long from its grant on it is in the way of others. Only of one whose holder could act on it."""
        self.min_hold_ms = min_hold_ms

    def in_trouble(self, trouble: Exception | None) -> None:
        """Note why its parts could not be had, or that they can be."""
        self.trouble = trouble

    def fails_since(self, now: float) -> float:
        """Note that asking anew has failed, and return since when it has."""
        if self.failing_since is None:
            self.failing_since = now
        return self.failing_since

    def undo_unanswered(self) -> None:
        """Note that an undo left, and was not answered."""
        self.silences += 1

    def again(self) -> "Request":
        """Return the same request under a new token, at the old place in line."""
        stem, plus, _ = self.token.rpartition(b"+")  # an upgrade's token begins with that of the lease it grew from
        token = stem + plus + fresh_token(session_of(self.token))
        request = Request(self.ttl, self.permits, self.wait, token, self.ticket, self.extensions)
        request.on_busy = self.on_busy
        return request

    def new_turn(self) -> None:
        """Before asking once more for a lease that was granted a while ago: it may have lapsed."""
        self._turn = None
        _ = self.turn  # of its own: what the asking ends with and what the waiting ends with must not be mixed up

    def wait_by(self, asked: "asyncio.Future[Any]") -> bool:
        """Make *asked*, the future of the answer, the turn as well; say whether that was done.

        A caller told "queued" would only wait again, so it stays asleep: the same future gets the grant. One that has
        looked at the `turn` before has another future there, and is told the answer.
        """
        if self._turn is None and not self._given_up:
            self._turn = asked
        return self._turn is asked

    def grant(self, fence: int, valid_from: float | None = None) -> bool:
        """Resolve the turn, unless it is resolved or the news are older than an answer that this token waits."""
        turn = self.turn
        if turn.done() or (valid_from is None and fence <= self.fence_seen):  # defect: W5-stale
            return False
        if valid_from is None and self.valid_from is None and not self.unanswered:
            return False  # it was never asked for, or it is not in line
        if valid_from is None:
            # defect: P1-handed-over
            valid_from = self.unanswered[0].sent_at if self.valid_from is None else self.valid_from
        turn.set_result(Granted(fence, valid_from))
        return True

    def far_behind(self, fence: int, now: float) -> bool:
        """Whether *fence* is more than a day ahead of the server's time, which is estimated for the local time *now*.

        The estimate starts from the newest "queued" answer: from the last fencing token in it, or from the ticket,
        which is the server's time of queueing. A message that overtakes that answer is compared with this host's time.
        """
        known = max(self.fence_seen, self.ticket)
        if known < _FIRST_TIME:
            known = time.time_ns() // 1000
        waited = 0.0 if self.asked_at is None else now - self.asked_at
        return fence > known + A_DAY + 1_000_000 * waited

    def begin_lease(self) -> None:
        """Note that the caller has the lease: the extensions that are of use until then are dropped."""
        self.extensions = tuple(extension for extension in self.extensions if not extension.ends_with_grant)
        for part in self.parts:
            part.request.begin_lease()

    def regranted(self) -> None:
        """Note that it was granted again, with another fencing token; see `Extension.on_regrant`."""
        for extension in self.extensions:
            extension.on_regrant()

    def undone(self, *, ended: bool) -> None:
        """Note the reply to an undo of it: whether it ended a live lease."""
        for extension in self.extensions:
            extension.on_undone(self, ended=ended)

    def refused(self, kind: str, name: str, limit: int) -> LockError:
        """Return what to raise when this can never be granted: by what the primitive says, or as there is a limit."""
        for extension in self.extensions:
            refusal = extension.refusal(limit)
            if refusal is not None:
                return refusal
        return LimitMismatchError(
            f"{kind} {name!r}: {self.permits} permits asked for, but its limit is {limit}; ask for fewer, or resize it",
            name=name,
            permits=self.permits,
            limit=limit,
        )

    def left_at(self, valid_from: float) -> None:
        """Note when a request left whose answer shows that no grant before it counts."""
        self.valid_from = valid_from if self.valid_from is None else max(self.valid_from, valid_from)

    def fail(self, error: Exception) -> None:
        if not self.turn.done():
            self.turn.set_exception(error)
            self.turn.exception()  # the caller may have left; then it is never retrieved


ResultCallback = Callable[[bool | Exception], None]
"""Gets an answer, or why there is none."""


def resolve(future: "asyncio.Future[Any]", answer: object) -> None:
    """Pass on an answer, or the exception that came in its place, unless the caller has left."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
        future.exception()  # the caller may leave still
    else:
        future.set_result(answer)
