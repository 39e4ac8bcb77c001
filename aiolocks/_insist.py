"""Asks until Redis has answered: for scripts that do no harm when they run twice."""

import asyncio
from typing import Any

from redis.exceptions import ReadOnlyError

from ._bound import Arguments
from ._commands import UNCERTAIN
from ._deadlines import retry_delay
from ._grantor import RedisGrantor


async def insist(grantor: RedisGrantor, verb: str, args: Arguments, *, until: float, **options: Any) -> Any:
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
