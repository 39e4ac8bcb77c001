"""The undoing of one request or lease: tried until the server has answered, in the background if need be."""

import asyncio
from typing import TYPE_CHECKING, final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ._deadlines import retry_delay
from ._request import Grantor, Request

if TYPE_CHECKING:
    from ._session import Session


@final
class Withdrawal:
    """Retried until confirmed, or pointless after *until*.

    `outcome` is True when it ended a live lease, False when the server says that there was none, and None when it says
    so after an earlier attempt whose answer was lost: that one may have ended it.
    """

    def __init__(self, session: "Session", grantor: Grantor, request: Request, until: float) -> None:
        self._session = session
        self._grantor = grantor
        self._request = request
        self._until = until
        self._failures = 0
        self._trouble: BaseException | None = None
        self.awaited = False
        """Somebody waits for the outcome however long it takes, and the session with them."""
        self.outcome: asyncio.Future[bool | None] = session.loop.create_future()
        if session.closed or session.loop.is_closed():
            self.finish(RedisConnectionError("the session has ended"))
            return
        session.withdrawing[request.token] = self
        self._try()

    async def confirmed(self) -> bool | None:
        """Wait for the outcome, until it is pointless. A cancellation leaves it going on.

        Raises:
            RedisError: It could not be confirmed.
        """
        left = max(self._until - self._session.clock(), 0.0)
        self.awaited = True
        try:
            await asyncio.wait((self.outcome,), timeout=left)
        finally:
            self.awaited = False
            self._session.touch()
        if not self.outcome.done():
            self.finish(self._trouble or RedisTimeoutError("Redis has not confirmed it in time"))
        return self.outcome.result()

    def _try(self) -> None:
        if not self.outcome.done():
            attempt = asyncio.ensure_future(self._grantor.withdraw(self._request), loop=self._session.loop)
            attempt.add_done_callback(self._tried)

    def _tried(self, attempt: "asyncio.Future[bool]") -> None:
        if self.outcome.done():
            return
        error = RedisConnectionError("cancelled") if attempt.cancelled() else attempt.exception()
        if error is None:
            ended = attempt.result()
            self.finish(None if self._request.silences and not ended else ended)
            return
        self._failures += 1
        self._trouble = error
        pause = retry_delay(self._request.ttl, self._failures)
        if self._session.clock() + pause >= self._until:
            self.finish(error)
        else:
            self._session.loop.call_later(pause, self._try)

    def finish(self, result: bool | BaseException | None) -> None:
        if not self.outcome.done():
            self._session.withdrawing.pop(self._request.token, None)
            if isinstance(result, BaseException):
                self.outcome.set_exception(result)
                self.outcome.exception()  # nobody may be waiting
            else:
                self.outcome.set_result(result)
