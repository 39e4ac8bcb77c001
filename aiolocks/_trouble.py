"""What Redis answers when it cannot run a command just now: known by its text in one place, and asked again.

It was not run, so there is nothing to undo, and the connection is as good as before. So this is neither an outage,
after which a request may have been carried out, nor a refusal, which asking again does not change.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar, final

from redis.asyncio.retry import Retry
from redis.exceptions import RedisError, ResponseError

from ._deadlines import retry_delay

T = TypeVar("T")

_LONGEST_PAUSE = 0.25
"""Seconds between two attempts: much longer than one takes the server, and much shorter than what is ridden out."""

_NOT_NOW = ("BUSY ",)
"""How such answers begin. BUSY: a script or a module's command of somebody else's has been running for long."""


class NotNowError(ResponseError):
    """Redis cannot run this just now, and has not."""


def recognized(error: Exception) -> Exception:
    """Return *error* as a `NotNowError` if that is what it says, and else as it is."""
    for each in (error, error.__cause__):  # redis-py makes a ConnectionError of what its handshake is answered
        if isinstance(each, ResponseError) and str(each).startswith(_NOT_NOW):
            return NotNowError(*each.args)
    return error


def came_too_early(error: RedisError) -> bool:
    """Say whether *error* is, or is caused by, Redis being unable to run it just now."""
    return isinstance(error, NotNowError) or isinstance(error.__cause__, NotNowError)


async def ride_out(
    ask: Callable[[], Awaitable[T]],
    clock: Callable[[], float],
    until: float,
    failed: Callable[[Exception], Awaitable[None]] | None = None,
) -> T:
    """Ask again and again while Redis cannot run it just now; *failed* hears of each time.

    Raises:
        RedisError: It could not until local time *until*, or there was other trouble.
    """
    failures = 0
    while True:
        try:
            return await ask()
        except RedisError as error:
            failures += 1
            pause = min(retry_delay(until - clock(), failures), _LONGEST_PAUSE)
            if not came_too_early(error) or clock() + pause >= until:
                raise
            if failed is not None:
                await failed(error)
        await asyncio.sleep(pause)


@final
class RidingOut:
    """A retry policy of the user's, which does not count what is ridden out."""

    def __init__(self, policy: Retry, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock

    async def call_with_retry(self, do: Callable[[], Awaitable[T]], fail: Callable[[Exception], Awaitable[None]]) -> T:
        """Do as the policy does; the caller bounds the time."""
        return await self._policy.call_with_retry(lambda: ride_out(do, self._clock, math.inf, fail), fail)
