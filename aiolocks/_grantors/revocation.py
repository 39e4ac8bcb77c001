"""Revoking: holders are renewed no more, so that they stop; then what they held is free for the next in line.

Which leases are meant is said by fencing tokens that are known before the first request: so one that is sent again hits
no later lease, and asking goes on until none of them is left.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import final

from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core.errors import AcquireTimeoutError
from .._engine.request import LONGEST_RETRY
from .one_server import RedisGrantor

_SHORTEST_PAUSE = 0.02
_LONGEST_PAUSE = 0.25
"""Seconds between two looks at whether they are gone."""

_CANNOT_BE_MARKED = -1


@final
@dataclass(frozen=True, slots=True)
class Meant:
    """The leases of one name whose fencing tokens are from *first* to *last*."""

    grantor: RedisGrantor
    first: int
    last: int

    async def revoke(self, *, force: bool) -> float:
        """Have none of them renewed any more, or end them at once.

        Returns:
            Seconds after which the last of them has ended, unless it is released before; 0 when none is left.

        Raises:
            RuntimeError: The holder is not one of this library's, and cannot be told.
        """
        tombstone_ms = round(1000 * LONGEST_RETRY) if force else 0
        meant, longest = b"%d %d" % (self.first, self.last), 0
        while meant:
            [left_ms, *more], *_ = await self.grantor.ask("revoke", (meant, tombstone_ms), as_waiter=True)
            meant = b"%d %d %b" % (self.first, self.last, more[0]) if more else b""
            if left_ms == _CANNOT_BE_MARKED:
                raise RuntimeError(
                    f"{self.grantor.kind} {self.grantor.name!r}: its holder is not one of this library, or nothing is "
                    "known of it, so that it cannot be told to stop; force=True ends its lease all the same"
                )
            longest = max(longest, left_ms)
        return longest / 1000


async def wait_revoked(what: str, name: str, revoke: Callable[[], Awaitable[float]], timeout: float | None) -> None:
    """Do *revoke* until it returns 0, which is the seconds that a lease may last still.

    Raises:
        AcquireTimeoutError: Some are not gone within *timeout* seconds. They are revoked all the same.
        RedisError: Redis could not be asked.
    """
    left = math.nan
    pause = _SHORTEST_PAUSE

    async def wait() -> None:
        nonlocal left, pause
        while left := await revoke():
            if timeout == 0:
                raise TimeoutError
            await asyncio.sleep(min(pause, left))
            pause = min(1.5 * pause, _LONGEST_PAUSE)

    try:
        async with asyncio.timeout(timeout or None):
            await wait()
    except TimeoutError as late:
        if isinstance(late, (RedisTimeoutError, AcquireTimeoutError)):
            raise
        if math.isnan(left):
            raise RedisTimeoutError(f"{what}: Redis did not answer within {timeout:g} s") from None
        raise AcquireTimeoutError(
            f"{what}: revoked, but still held after {timeout:g} s", name=name, timeout=timeout or 0.0, retry_after=left
        ) from None
