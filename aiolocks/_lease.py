"""The lease: the right to act until a moment, and everything the holder can ask of it or do with it.

`LeaseState` is the engine's side, which the watchdog keeps alive; `Lease` is the caller's, so that one forgotten by
its caller stops being renewed. Its deadline is the one truth: whoever asks compares it with the clock.
"""

import asyncio
import sys
import warnings
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

from . import _deadlines
from ._errors import LeaseLostError
from ._options import Options, check_ttl
from ._request import Granted, Grantor, Request

if TYPE_CHECKING:
    from ._hold import Body
    from ._session import Session


@final
class LeaseState:
    """What is known of one lease, from its grant until it is released or lost."""

    __slots__ = (
        "_deadline", "_ended", "_events", "_reason", "_timer", "base", "dropped", "failures", "fence", "grantor",
        "on_loss", "options", "renew_until", "request", "session",
    )  # fmt: skip

    def __init__(
        self, session: "Session", grantor: Grantor, base: bytes, request: Request, granted: Granted, options: Options
    ) -> None:
        self.session = session
        self.grantor = grantor
        self.base = base
        self.request = request
        self.options = options
        self.fence = granted.fence
        self.failures = 0
        self.dropped = False
        self.renew_until = float("inf") if options.max_hold is None else session.clock() + options.max_hold
        self.on_loss: Callable[[], None] | None = None
        self._deadline = _deadlines.deadline(granted.counted_from, request.ttl)
        self._ended = False
        self._reason: str | None = None
        self._events: list[asyncio.Event] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def deadline(self) -> float:
        return self._deadline

    @property
    def over(self) -> bool:
        """Nothing may change this lease any more: it was released, or its loss was noted."""
        return self._ended or self._reason is not None

    @property
    def held(self) -> bool:
        return not self.over and self.session.clock() < self._deadline

    @property
    def lost(self) -> bool:
        return self._reason is not None or (not self._ended and self.session.clock() >= self._deadline)

    @property
    def reason(self) -> str:
        return self._reason or f"not renewed within its {self.request.ttl:g} s TTL"

    def extend(self, sent_at: float, ttl: float) -> None:
        """Count a renewal that the server confirmed; a late one revives nothing."""
        if self.held:
            self._deadline = max(self._deadline, _deadlines.deadline(sent_at, ttl))

    def lose(self, reason: str) -> None:
        """Note the loss, once, and tell the body and whoever waits."""
        if not self.over:
            self._reason = reason
            self._conclude()
            self.session.forget(self.request)
            if self.on_loss is not None:
                self.on_loss()

    def end(self) -> bool:
        """Stop renewing, because the holder lets go; True if the lease was valid until this moment."""
        if self.held:
            self._ended = True
            self._conclude()
            return True
        self.lose(self.reason)
        return False

    def abandon(self) -> None:
        """Stop renewing: nobody can reach this lease any more, so it runs out."""
        self._ended = True
        self._conclude()
        self.session.forget(self.request)

    def watch_deadline(self) -> None:
        """Note the loss at the deadline even if nobody looks; renewals move it, so it is read anew each time."""
        self._timer = None
        left = self._deadline - self.session.clock()
        if self.over:
            return
        if left <= 0:
            self.lose(self.reason)
        else:
            self._timer = self.session.loop.call_later(left, self.watch_deadline)

    async def wait_over(self) -> None:
        if not self.over:
            event = asyncio.Event()
            self._events.append(event)
            if self._timer is None:
                self.watch_deadline()
            await event.wait()

    def _conclude(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.session.watchdog.forget(self)
        for event in self._events:
            event.set()

    def error(self, reason: str | None = None) -> LeaseLostError:
        reason = reason or self.reason
        return LeaseLostError(
            f"{self.grantor.kind} {self.grantor.name!r}: {reason}; stop acting on it",
            name=self.grantor.name,
            fencing_token=self.fence,
            reason=reason,
        )


@final
class Lease:
    """The right to act until a moment, renewed in the background until it is released.

    Got from `acquire()`, `try_acquire()` or an `async with` block. It belongs to no task: any may use or release it.
    `async with lease:` stops its body if the lease is lost, and releases it at the end.
    """

    __slots__ = ("__weakref__", "_body", "_owner", "_state")

    def __init__(self, state: LeaseState, owner: "asyncio.Task[Any] | None") -> None:
        self._state = state
        self._owner = owner
        self._body: Body | None = None

    @property
    def name(self) -> str:
        """What is held, as the caller named it."""
        return self._state.grantor.name

    @property
    def token(self) -> str:
        """The random token that proves who holds it. Keep it out of logs."""
        return self._state.request.token.decode()

    @property
    def fencing_token(self) -> int:
        """A number that grows with every grant of the name: hand it to the resource, which rejects smaller ones."""
        return self._state.fence

    @property
    def held(self) -> bool:
        """Whether the lease is certainly valid now, by the clock. False once lost or released."""
        return self._state.held

    @property
    def lost(self) -> bool:
        """Whether the lease ended before it was released, by the clock."""
        return self._state.lost

    def remaining(self) -> float:
        """Return the seconds of certain validity left by the local clock; 0.0 once lost or released."""
        state = self._state
        return max(state.deadline - state.session.clock(), 0.0) if not state.over else 0.0

    def check(self) -> None:
        """Return if the lease is held; cheap enough to call before every write.

        Raises:
            LeaseLostError: It was lost, or released.
        """
        state = self._state
        if not state.held:
            raise state.error(None if state.lost else "it was released before")

    async def wait_lost(self) -> bool:
        """Wait until the lease is over: True when it was lost, False when it was released. Cancelling is harmless."""
        await self._state.wait_over()
        return self._state.lost

    async def renew(self, ttl: float | None = None) -> bool:
        """Ask for *ttl* seconds from now (its own TTL if left out); what was granted before is never shortened.

        Returns:
            True if the server confirmed it; False if the lease is lost or was released.

        Raises:
            RedisError: Not confirmed. The lease goes on until its deadline. The same after a cancellation.
        """
        state = self._state
        ttl = state.request.ttl if ttl is None else ttl
        check_ttl(ttl)
        ttl = round(ttl * 1000) / 1000
        if not state.held:
            return False
        sent_at = state.session.clock()
        renewed = await state.grantor.renew(state.request, ttl)
        if not renewed:
            state.lose("the server has given it to somebody else or let it expire")
            return False
        state.extend(sent_at, ttl)
        return state.held

    async def release(self) -> bool:
        """Let go, so that the next waiter gets it; may be called again.

        Returns:
            True if this call ended a live lease; False if it was lost or already released.

        Raises:
            RedisError: Not confirmed within the TTL or 10 s. The lease is not renewed any more and ends with its TTL.

        After a cancellation the release goes on in the background.
        """
        state = self._state
        valid = state.end()
        self._unlist()
        withdrawal = state.session.drop(state)
        if withdrawal is None or not valid:
            return False
        # None: nothing there after an attempt whose answer was lost, which must have ended it.
        return await asyncio.shield(withdrawal.outcome) is not False

    def _unlist(self) -> None:
        if self._owner is not None:
            self._state.session.ledger.remove(self._owner, self._state.base, self)
            self._owner = None

    async def __aenter__(self) -> "Lease":
        """Enter a block whose body is stopped when the lease is lost.

        Raises:
            LeaseLostError: It is lost already, or was released.
            RuntimeError: A block with this lease is open already.
        """
        from ._hold import Body

        if self._body is not None:
            raise RuntimeError(f"a block with this lease of {self.name!r} is open already")
        self.check()
        self._body = Body(self, self._state)
        return self

    def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> Coroutine[Any, Any, bool]:
        body, self._body = self._body, None
        if body is None:
            raise RuntimeError(f"no block with this lease of {self.name!r} is open")
        return body.leave(exc_type, exc, traceback, sys._getframe(1))

    def __repr__(self) -> str:
        state = self._state
        status = "held" if state.held else "lost" if state.lost else "released"
        return f"<Lease {state.grantor.kind} {self.name!r} fencing_token={state.fence} {status}>"

    def __del__(self) -> None:
        state = getattr(self, "_state", None)
        if state is not None and not state.over:
            state.abandon()
            warnings.warn(
                f"{state.grantor.kind} {state.grantor.name!r}: a lease was dropped without being released; it is not "
                "renewed any more and ends with its TTL",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
