"""The undoing of one request or lease: tried until the server has answered, in the background if need be."""

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ._deadlines import retry_delay
from ._request import Grantor, Request

if TYPE_CHECKING:
    from ._session import Session


_NEVER = math.inf

LONGEST_RELEASE = 10.0
"""Seconds that a release by hand waits for its answer, if the lease lasts that long; it goes on in the background."""


@final
class Withdrawal:
    """Retried until confirmed, or pointless after *until*; the session lives for as long, or for a TTL at most.

    Once `done`, either `trouble` says why it could not be confirmed, or `ended` what the server answered: True when
    it ended a live lease, False when there was none, and None when there was none after an earlier attempt whose
    answer was lost: that one may have ended it.
    """

    __slots__ = (
        "_failures", "_grantor", "_keeps_until", "_request", "_session", "_then", "_under_way", "_until", "_waiter",
        "begun", "done", "due", "ended", "trouble",
    )  # fmt: skip

    def __init__(
        self,
        session: "Session",
        grantor: Grantor,
        request: Request,
        until: float,
        then: "Callable[[Withdrawal], None] | None" = None,
    ) -> None:
        self._session = session
        self._grantor = grantor
        self._request = request
        self._until = until
        self._then = then
        self._failures = 0
        self._waiter: asyncio.Future[None] | None = None
        self.due = _NEVER
        """Until when somebody waits."""
        self.begun = session.clock()
        self._keeps_until = until
        self._under_way = False
        if request.unanswered:
            self._under_way = True
            self._keeps_until = min(until, self.begun + request.ttl)
        self.done = False
        self.ended: bool | None = None
        self.trouble: BaseException | None = None
        if session.closed or session.loop.is_closed():
            self.finish(RedisConnectionError("the session has ended"))
            return
        session.withdrawing[request.token] = self
        grantor.withdraw(request, self)

    def wait(self, until: float | None = None) -> "asyncio.Future[None]":
        """Return what is resolved once it is done, or *until* has come; for one at a time.

        Left out: when it is pointless, or has taken too long to be waited for.

        Cancelling that leaves it going on.
        """
        session = self._session
        waiter = self._waiter = session.loop.create_future()
        if self.done:
            waiter.set_result(None)
        else:
            if until is None:
                until = self.begun + LONGEST_RELEASE
                until = until if until < self._until else self._until
            self.due = until
            if until < session.waits.looks_at:
                session.waits.expect(until, session.clock())
        return waiter

    def keeps_session(self, now: float) -> bool:
        """Whether the session must go on for this.

        A request that may still be on its way is worth an undo for long, but not a connection for longer than the
        lease would last that it asks for; from now on, if it was answered meanwhile.
        """
        if self._under_way and not self._request.unanswered:
            self._under_way = False
            self._keeps_until = min(self._until, now + self._request.ttl)
        return now < self._keeps_until

    def outcome(self) -> bool | None:
        """Return what the server answered.

        Raises:
            RedisError: It is not confirmed, or not yet.
        """
        if self.trouble is not None:
            raise self.trouble
        if not self.done:
            raise RedisTimeoutError("Redis has not confirmed it in time")
        return self.ended

    def _try(self) -> None:
        if not self.done:
            self._grantor.withdraw(self._request, self)

    def __call__(self, ended: bool | Exception) -> None:
        """Take the outcome of one try."""
        if self.done:
            return
        if isinstance(ended, bool):
            self.finish(None if self._request.silences and not ended else ended)
            return
        self._failures += 1
        self.trouble = error = ended
        pause = retry_delay(self._request.ttl, self._failures)
        if self._session.clock() + pause >= self._until:
            self.finish(error)
        else:
            self._session.loop.call_later(pause, self._try)

    def finish(self, result: bool | BaseException | None) -> None:
        if self.done:
            return
        self._session.withdrawing.pop(self._request.token, None)
        self.done = True
        if result is None or isinstance(result, bool):
            self.trouble, self.ended = None, result
        else:
            self.trouble = result
        self.wake()
        if self._then is not None:
            self._then(self)

    def tell_too(self, then: "Callable[[Withdrawal], None]") -> None:
        """Call *then* as well when it is done."""
        first = self._then

        def both(withdrawal: Withdrawal) -> None:
            if first is not None:
                first(withdrawal)
            then(withdrawal)

        self._then = both

    def wake(self) -> None:
        """Let whoever waits go on."""
        self.due = _NEVER
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
