"""Asks until Redis has answered: for scripts that do no harm when they run twice."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ._bound import Arguments
from ._commands import LONGEST_WAIT, UNCERTAIN, Commands
from ._deadlines import retry_delay

if TYPE_CHECKING:
    from ._grantor import RedisGrantor

T = TypeVar("T")


async def as_the_client_would(commands: Commands, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask as often as the user's client would try, for as long as a request may stay unanswered.

    Raises:
        RedisError: Not answered by then: the last trouble.
    """
    trouble: Exception = RedisTimeoutError(f"Redis did not answer within {LONGEST_WAIT:g} s")

    async def failed(error: Exception) -> None:
        nonlocal trouble
        trouble = error

    try:
        async with asyncio.timeout(LONGEST_WAIT):
            return await commands.retry_policy().call_with_retry(ask, failed)
    except RedisTimeoutError:
        raise
    except TimeoutError:
        raise trouble from None


async def insist(grantor: "RedisGrantor", verb: str, args: Arguments, *, until: float, **options: Any) -> Any:
    """Do as `RedisGrantor.ask_once` does, again and again if need be, and more patiently each time.

    Raises:
        RedisError: Not answered until local time *until*.
    """
    session, failures = grantor.session, 0
    while True:
        patience = session.commands.patience_after(failures)
        try:
            return await grantor.ask_once(verb, args, patience=patience, **options)
        except (*UNCERTAIN, ReadOnlyError):
            failures += 1
            pause = retry_delay(until - session.clock(), failures)
            if session.clock() + pause >= until:
                raise
            await asyncio.sleep(pause)
