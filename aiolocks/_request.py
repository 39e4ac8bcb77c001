"""One acquisition from its first request to its release: what was asked, and what is known of the answers.

Pure state. The one rule: a grant counts from the newest request of which it is certain that it left before the grant.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

from ._commands import Call, Commands
from ._deadlines import deadline
from ._errors import LimitMismatchError, LockError

if TYPE_CHECKING:
    from ._guard import Runs
    from ._session import Session

LONGEST_RETRY = 60.0
"""Seconds within which a request sent over a lost connection may still reach Redis; tombstones last at least that."""


class Granted(NamedTuple):
    """A lease began, no earlier than local time *counted_from*."""

    fence: int
    counted_from: float


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits in line; its `turn` tells when that ends."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Not granted and not queued."""


Answer = Granted | Queued | Busy


@lru_cache(maxsize=64)
def _terms(ttl: float) -> tuple[int, float, float]:
    """Return a TTL in ms as the server is told it, the same in seconds, and for how much of it a holder may act."""
    ttl_ms = round(ttl * 1000)
    return ttl_ms, ttl_ms / 1000, deadline(0.0, ttl_ms / 1000)


@lru_cache(maxsize=64)
def _written(ttl_ms: int, permits: int) -> bytes:
    return b"%d %d" % (ttl_ms, permits)


def fresh_token() -> bytes:
    """Return a token that nobody can guess."""
    return os.urandom(16).hex().encode()


@final
class Request:
    """What one acquisition asks for, and its `turn`: the grant, or why there will be none.

    Its `permits` are a number of permits, or of whatever the primitive calls so: a read-write lock its modes.
    """

    __slots__ = (
        "_given_up", "_turn", "asked_at", "counted_from", "extra", "extra_again", "failing_since", "fence_seen",
        "learn", "objects", "parts", "permits", "reached", "refusal", "retry_after", "runs", "silences", "ticket",
        "token", "trouble", "ttl", "ttl_ms", "unanswered", "valid_for", "wait",
    )  # fmt: skip

    def __init__(self, ttl: float, permits: int, wait: bool, token: bytes | None = None) -> None:
        self.token = token or fresh_token()
        self.ttl_ms, self.ttl, self.valid_for = _terms(ttl)
        self.permits = permits
        self.wait = wait
        self._turn: asyncio.Future[Granted] | None = None
        self._given_up = False
        self.ticket = 0
        self.asked_at: float | None = None
        self.counted_from: float | None = None
        self.fence_seen = 0
        self.retry_after: float | None = None
        self.unanswered: tuple[Call, ...] = ()
        """Attempts, oldest first."""
        self.silences = 0
        """Undos that left and were not answered: one of them may have been carried out."""
        self.failing_since: float | None = None
        """Since when asking anew for a forgotten place has failed, without a break."""
        self.reached = False
        """Redis has answered, so that there may be something to undo."""
        self.extra: tuple[bytes | int, ...] = ()
        """What this primitive's script takes beyond the usual arguments, the first time that it is sent."""
        self.extra_again: tuple[bytes | int, ...] = ()
        """The same for later times: what was declared once must not undo what came since."""
        self.runs: Runs | None = None
        """Of commands that the lease guards."""
        self.learn: Callable[..., None] | None = None
        """Gets the arguments of the script's run, and its answer."""
        self.objects: Callable[[int], Exception | None] | None = None
        """Says, of the limit in force, why waiting would never end, if so."""
        self.refusal: Callable[[], LockError] | None = None
        """Says what it means that this can never be granted; None: more permits than there are."""
        self.parts: Sequence[Part] = ()
        """What it is made of, when a Grantor made of Grantors decides over it."""
        self.trouble: Exception | None = None
        """Why its parts could not be had, when that was last tried."""

    @property
    def turn(self) -> "asyncio.Future[Granted]":
        """The grant, for whoever has to wait for it; most have not."""
        turn = self._turn
        if turn is None:
            turn = self._turn = asyncio.get_running_loop().create_future()
            if self._given_up:
                turn.cancel()
        return turn

    @property
    def tried(self) -> bool:
        """Whether an attempt was made before."""
        return self.reached or bool(self.unanswered)

    @property
    def undo_for(self) -> float:
        """Seconds for which an undo is worth trying: what is on the server already ends with its TTL."""
        return max(self.ttl, LONGEST_RETRY) if self.unanswered else self.ttl

    def give_up(self) -> None:
        """Let nobody wait for the turn any more."""
        self._given_up = True
        if self._turn is not None:
            self._turn.cancel()

    def terms(self) -> bytes:
        """Return what stands behind its token in the queue."""
        return _written(self.ttl_ms, self.permits)

    def entry(self) -> bytes:
        """Return how it stands in the queue."""
        return b"%b %b" % (self.token, self.terms())

    def sent(self, call: Call) -> None:
        if self.asked_at is None:
            self.asked_at = call.sent_at
        self.unanswered += (call,)

    def not_run(self, call: Call) -> None:
        """Note that this attempt was not carried out, and will not be."""
        self.unanswered = tuple(other for other in self.unanswered if other is not call)

    def answered(self, call: Call) -> None:
        self.unanswered = (
            tuple(other for other in self.unanswered if other is not call) if len(self.unanswered) > 1 else ()
        )
        self.reached = self.reached or call.link is not None

    def granted(self, call: Call) -> None:
        """Note that this very attempt was granted."""
        self.reached = True
        self.counted_from = call.sent_at
        if len(self.unanswered) > 1:
            self.answered(call)
        else:
            self.unanswered = ()

    def queued(self, ticket: int, counted_from: float, fence_seen: int) -> None:
        """Note an answer that this token waits: any grant comes after that request left."""
        self.ticket = ticket
        self.failing_since = None
        self.left_at(counted_from)
        self.fence_seen = max(self.fence_seen, fence_seen)

    def again(self) -> "Request":
        """Return the same request under a new token, at the old place in line."""
        stem, plus, _ = self.token.rpartition(b"+")  # an upgrade's token begins with that of the lease it grew from
        request = Request(self.ttl, self.permits, wait=self.wait, token=stem + plus + fresh_token())
        request.ticket = self.ticket
        request.extra = self.extra
        request.extra_again = self.extra_again
        request.learn = self.learn
        request.objects = self.objects
        request.refusal = self.refusal
        return request

    def new_turn(self) -> None:
        """Before asking once more for a lease that was granted a while ago: it may have lapsed."""
        self._turn = None
        _ = self.turn  # of its own: what the asking ends with and what the waiting ends with must not be mixed up

    def wait_by(self, asked: "asyncio.Future[Any]") -> bool:
        """Let what is awaited for the answer go on as the turn, and say whether it does.

        That one waits is no news for a caller that would but wait on: most need not wake up for it. Whoever has looked
        at the `turn` before is told the answer itself.
        """
        if self._turn is None and not self._given_up:
            self._turn = asked
        return self._turn is asked

    def grant(self, fence: int, counted_from: float | None = None) -> bool:
        """Resolve the turn, unless it is resolved or the news are older than an answer that this token waits."""
        turn = self.turn
        if turn.done() or (counted_from is None and fence <= self.fence_seen):
            return False
        if counted_from is None and self.counted_from is None and not self.unanswered:
            return False  # it has been given up
        if counted_from is None:
            counted_from = self.unanswered[0].sent_at if self.counted_from is None else self.counted_from
        turn.set_result(Granted(fence, counted_from))
        return True

    def refused(self, kind: str, name: str, limit: int) -> LockError:
        """Return what to raise when this can never be granted: by what the primitive says, or as there is a limit."""
        if self.refusal is not None:
            return self.refusal()
        return LimitMismatchError(
            f"{kind} {name!r}: {self.permits} permits asked for, but its limit is {limit}; ask for fewer, or resize it",
            name=name,
            permits=self.permits,
            limit=limit,
        )

    def left_at(self, counted_from: float) -> None:
        """Note when a request left whose answer shows that no grant before it counts."""
        self.counted_from = counted_from if self.counted_from is None else max(self.counted_from, counted_from)

    def fail(self, error: Exception) -> None:
        if not self.turn.done():
            self.turn.set_exception(error)
            self.turn.exception()  # the caller may have left; then nobody else retrieves it


Tell = Callable[[bool | Exception], None]
"""Gets an answer, or why there is none."""


class Grantor(Protocol):
    """Who decides over a name: one Redis, or several that vote. All that waiting and leases need to know of it."""

    @property
    def name(self) -> str:
        """What it decides over, as the caller named it."""
        ...

    @property
    def session(self) -> "Session":
        """Whose clock and watchdog its leases go by."""
        ...

    @property
    def kind(self) -> str:
        """Such as ``lock``, for messages."""
        ...

    def grant(self, request: Request) -> Awaitable[Answer]:
        """Ask once. An exception leaves open whether Redis got the request; asking again with it is harmless.

        Raises:
            LimitMismatchError: More permits than there are.
            RedisError: Redis could not be asked.
        """
        ...

    def renew(self, request: Request, ttl: float, tell: Tell, commands: Commands | None = None) -> None:
        """Extend to *ttl* seconds from now at least.

        *tell* is called once: with True if that was done, False if the lease is not ours any more, or the exception
        that leaves it open. *commands* are those of the calling thread, if it is not the session's.
        """
        ...

    def withdraw(self, request: Request, tell: Tell) -> None:
        """End the lease, or leave the line, or see to it that a request still on its way comes to nothing.

        *tell* is called once: with True if a live lease was ended by this, False if there was none, or the exception
        that leaves it open.
        """
        ...


@final
@dataclass(slots=True)
class Part:
    """One of several requests that are one lease together, and whom it is for."""

    grantor: Grantor
    request: Request
    fence: int = 0
    """The fencing token that it was granted with, or 0."""
    ended: bool | None = None
    """What the server answered when it was undone."""


class Holding(NamedTuple):
    """What the scripts that run commands of a holder's own go by: on one server, one token under each name."""

    script: str
    record: bytes
    """Key of what is kept of the last run."""
    holders: tuple[bytes, ...]
    tokens: tuple[bytes, ...]


class Replicating(Grantor, Protocol):
    """One Redis that may have replicas."""

    def replicate(self, request: Request, replicas: int) -> Awaitable[Granted]:
        """See that so many replicas have what was granted.

        Raises:
            RedisError: Fewer have it in time, or that could not be found out, or the lease ran out meanwhile.
        """
        ...


def resolve(future: "asyncio.Future[Any]", answer: object) -> None:
    """Pass on an answer, or the exception that came in its place, unless whoever asked has left."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
        future.exception()  # whoever asked may leave still
    else:
        future.set_result(answer)
