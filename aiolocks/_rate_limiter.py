"""`RateLimiter`: at most so many starts in any window of time, for the whole fleet.

A start is a permit that counts for *per* from when its caller begins (W28). The lease is released then, and a negative
`MinHold` keeps the permit for *per* from the release. So every window of *per* has at most *limit* starts. Token
buckets, and windows that begin at fixed times, let through up to twice as many.

If a permit counted from its grant, a caller that heard of its grant late would begin late, and a window could have too
many starts: measured with 3 × 40 callers and 500 starts a second, 99 windows had. If a process dies before its release
is sent, the lease ends with its TTL, which is *per* and `_LATE`.
"""

import asyncio
import contextlib
import math
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, TypedDict, final

from redis.exceptions import RedisError

from ._core.background import background
from ._core.errors import AcquireTimeoutError, LimitMismatchError
from ._core.hints import NameHints, entered_without_async, explains_misuse
from ._core.options import UNSET, Duration, Unset, check_permits, check_seconds
from ._core.values import Statistics
from ._engine.lease import Lease
from ._engine.must_await import MustAwait
from ._grantors.min_hold import MinHold
from ._primitives.semaphore import Semaphore
from ._redis.clients import Client

_MAX_LIMIT = 100_000
_MIN_PER, _MAX_PER = 0.1, 86_400.0

_ROUNDING = 0.002
"""Seconds that a start counts beyond `per`: the server ends leases at whole milliseconds. Without them, 520 starts of
500 were seen in a window of a second."""

_LATE = 0.1
"""Maximum seconds between a grant and the begin of its caller for which the start counts for all of *per*, even if the
process dies at once."""

_TRY_ACQUIRE = "try_acquire() must be awaited: `if await limiter.try_acquire():`"


class RateLimiterOptions(TypedDict, total=False):
    """The options of a `RateLimiter`, for type checkers. See `RateLimiter`."""

    acquire_timeout: Duration | None
    max_waiting: int | None
    prefix: str


async def _release(lease: Lease) -> None:
    with contextlib.suppress(RedisError, OSError):  # it ends with its TTL
        await lease.release()


class _Starts(Semaphore):
    """The semaphore whose permits are the starts. Each counts for *seconds* from its release."""

    _kind: ClassVar[str] = "rate"

    def __init__(
        self, client: Client, name: str, limit: int, seconds: float, acquire_timeout: Duration | None,
        max_waiting: int | None, prefix: str,
    ) -> None:  # fmt: skip
        super().__init__(
            client, name, limit, ttl=seconds + _LATE, acquire_timeout=acquire_timeout, on_lost="flag", renew=False,
            max_waiting=max_waiting, prefix=prefix,
        )  # fmt: skip
        self._extensions += (MinHold(-math.ceil(1000 * seconds)),)


@final
class RateLimiter(NameHints):
    """At most *limit* starts in any window of *per* seconds, over all processes that use the same Redis and name.

    ::

        limiter = RateLimiter(redis, "api.example.com", 100, per=60)
        async with limiter:  # waits for its start; first come, first served
            await call_the_api()

    It limits how often something begins, not how much runs at the same time: it holds nothing, and leaving the block
    does nothing. For both, enter a `Semaphore` outside and the limiter inside. For several rates, enter one inside the
    other; only the innermost is exact.

    A start that a caller got counts, even if the caller is cancelled or dies afterwards. Time is the server's: if its
    clock steps forward by less than *per*, one window can have up to twice *limit* starts. A service counts requests
    when they arrive, which differs by the times that they take: set *limit* a little lower than what it enforces.

    All processes should use the same *limit* and *per*. The limit that was declared last is in force for all, and a
    difference is logged. Each start counts for the *per* of its own caller; a different *per* is not noticed.

    Every duration is a number of seconds or a `timedelta`.

    Args:
        client: Any `redis.asyncio.Redis`, as you configured it. It is neither modified nor closed.
        name: What is limited: 1 to 1,024 bytes of UTF-8, any text.
        limit: Number of starts: 1 to 100,000.
        per: Length of the window: 0.1 s to a day.
        acquire_timeout: Seconds to wait for a start. None, the default, waits for ever. 0 asks once.
        max_waiting, prefix: As for a `Lock`.

    Raises:
        TypeError: A wrong type, a synchronous client, or an option of `Lock` that makes no sense here.
        ValueError: A value out of range. Both before any I/O.
    """

    @explains_misuse
    def __init__(
        self, client: Client, name: str, limit: int, *, per: Duration,
        acquire_timeout: Duration | None = None, max_waiting: int | None = None, prefix: str = "aiolocks:",
    ) -> None:  # fmt: skip
        limit = check_permits(limit, "limit")
        if limit > _MAX_LIMIT:
            raise ValueError(f"limit must be between 1 and {_MAX_LIMIT:,}, not {limit!r}")
        seconds = check_seconds("per", per)
        if not _MIN_PER <= seconds <= _MAX_PER:
            raise ValueError(f"per must be between {_MIN_PER} seconds and a day, not {per!r}")
        self._limit, self._per = limit, seconds
        self._primitive = _Starts(client, name, limit, seconds + _ROUNDING, acquire_timeout, max_waiting, prefix)

    @property
    def name(self) -> str:
        """The name, as given."""
        return self._primitive.name

    def __repr__(self) -> str:
        return f"<RateLimiter {self.name!r} limit={self._limit} per={self._per:g}>"

    @explains_misuse
    async def acquire(
        self, *, cost: int = 1, timeout: Duration | Unset | None = UNSET, max_waiting: int | Unset | None = UNSET
    ) -> None:
        """Wait for a start. There is nothing to release.

        Args:
            cost: Number of starts that it counts as, such as the tokens of a request.
            timeout: Seconds to wait. The default is `acquire_timeout`. None waits for ever. 0 asks once.
            max_waiting: Maximum number of callers that wait, for this call. The default is the option.

        Raises:
            AcquireTimeoutError: There was no start within *timeout*. `retry_after` says when the next one can be.
            QueueFullError: An AcquireTimeoutError at once: as many as *max_waiting* wait already.
            LimitMismatchError: *cost* is above the limit, so the wait would never end.
            RedisError: Redis could not be asked.

        If this call raises or is cancelled, it has used no start.
        """
        cost = self._check_cost(cost)
        seconds = self._primitive._timeout(timeout, max_waiting)
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        while True:
            lease = await self._primitive.acquire(permits=cost, timeout=seconds, max_waiting=max_waiting)
            # A turn of the loop later, so after the caller has begun.
            _ = background(_release(lease))  # defect: W28-release
            if lease.held:
                return
            # This process stood still after the grant, and it is too late for that start.
            seconds, max_waiting = None if end is None else max(end - loop.time(), 0), None

    @explains_misuse
    def try_acquire(self, *, cost: int = 1) -> MustAwait[bool]:
        """Take a start if there is one now, and return whether there was.

        There is none if others wait. It raises LimitMismatchError and RedisError as `acquire` does.
        """
        return MustAwait(self._try_acquire(cost), _TRY_ACQUIRE)

    async def _try_acquire(self, cost: int) -> bool:
        try:
            await self.acquire(cost=cost, timeout=0)
        except AcquireTimeoutError:
            return False
        return True

    async def pause(self, seconds: Duration) -> float:
        """Let nothing start in any process for *seconds*, and return how long that lasts; see `Semaphore.pause`."""
        return await self._primitive.pause(seconds)

    async def resume(self) -> bool:
        """End a pause for all processes, and return whether there was one; see `Semaphore.resume`."""
        return await self._primitive.resume()

    async def statistics(self) -> Statistics:
        """Ask Redis for the starts of the present window, as `permits`; for the limit; and for the number of waiters.

        `kept_until` is when the last of these starts counts no longer. The errors are those of `Lock.statistics`.
        """
        return replace(await self._primitive.statistics(), holders=0)  # a start that was just granted has one still

    def _check_cost(self, cost: int) -> int:
        cost = check_permits(cost, "cost")
        if cost > self._limit:
            text = f"rate {self.name!r}: a cost of {cost} is above the limit, {self._limit} per {self._per:g} s"
            raise LimitMismatchError(text, name=self.name, permits=cost, limit=self._limit)
        return cost

    async def __aenter__(self) -> None:
        """Wait `acquire_timeout` for a start; see `acquire`."""
        await self.acquire()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do nothing."""

    if not TYPE_CHECKING:  # type checkers know without it
        __enter__ = __exit__ = entered_without_async
