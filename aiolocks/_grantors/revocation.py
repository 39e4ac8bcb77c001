"""Revoking: holders are renewed no more, so that they stop; then what they held is free for the next in line.

Which leases are meant is said by fencing tokens that were read before: so a request that is sent again hits no later
lease, and asking goes on until none of them is left.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, final

from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core.errors import AcquireTimeoutError
from .._core.kinds import KINDS
from .._core.modes import MODE_NAMES
from .._core.values import Holder
from .._engine.request import LONGEST_RETRY
from .one_server import RedisGrantor

_SHORTEST_PAUSE = 0.02
_LONGEST_PAUSE = 0.25
"""Seconds between two looks at whether they are gone."""

_LARGEST = 2**53 - 1
"""No fencing token is larger."""

_LOOK = -1
_CANNOT_BE_MARKED = -1

_Row = tuple[int, int, int]
"""A fencing token, the ms that its lease has left, or -1 if it never ends; and its permits or mode."""

_WITH_MODES = {kind.name for kind in KINDS if kind.modes}


@final
@dataclass(frozen=True, slots=True, eq=False)
class Meant:
    """The leases of one name that are to be revoked."""

    grantor: RedisGrantor
    first: int
    last: int
    """Their fencing tokens are from the one to the other."""
    holders: tuple[Holder, ...]

    async def revoke(self, *, force: bool) -> float:
        """Have none of them renewed any more, or end them at once.

        Returns:
            Seconds after which the last of them has ended, unless it is released before; 0 when none is left.
        """
        left, _ = await _ask(self.grantor, self.first, self.last, round(1000 * LONGEST_RETRY) if force else 0)
        return left


async def meant(grantor: RedisGrantor, fencing_token: int | None, *, force: bool) -> Meant | None:
    """Return the leases of a name, or that with this fencing token; None if there are none.

    Raises:
        RuntimeError: One of them cannot be told, and *force* is not given.
    """
    first, last = (0, _LARGEST) if fencing_token is None else (fencing_token, fencing_token)
    left, rows = await _ask(grantor, first, last, _LOOK)
    if left < 0 and not force:
        raise RuntimeError(
            f"{grantor.kind} {grantor.name!r}: its holder is not one of this library, or nothing is known of it, so "
            "that it cannot be told to stop; force=True ends its lease all the same"
        )
    if not rows:
        return None
    if fencing_token is None:
        fences = [fence for fence, *_ in rows]
        first, last = min(fences), max(fences)
    # One that lasts no longer was released before, and the name is kept by `min_hold` alone.
    return Meant(grantor, first, last, tuple(_holder(grantor.kind, *row) for row in rows if row[1]))


async def _ask(grantor: RedisGrantor, first: int, last: int, tombstone_ms: int) -> tuple[float, list[_Row]]:
    """Return the seconds until the last of those meant ends, and who they are; below 0: one cannot be marked."""
    longest, found = 0.0, list[_Row]()
    place = b""
    while True:
        args = (b"%d %d %b" % (first, last, place) if place else b"%d %d" % (first, last), tombstone_ms)
        [left_ms, place, *rows], *_ = await grantor.ask("revoke", args, as_waiter=True)
        fields = iter(rows)
        found += zip(fields, fields, fields, strict=True)
        longest = _longest([longest, left_ms / 1000])
        if not place:
            return longest, found


def _holder(kind: str, fence: int, lasts_ms: int, share: int) -> Holder:
    modes = kind in _WITH_MODES
    return Holder(
        host=None,
        pid=None,
        holder=None,
        task=None,
        since=datetime.fromtimestamp(fence / 1e6, UTC) if fence else None,
        remaining=math.inf if lasts_ms < 0 else lasts_ms / 1000,
        permits=1 if modes else share,
        mode=MODE_NAMES.get(share) if modes else None,
        fencing_token=fence,
    )


class Voting(Protocol):
    """What is asked here of a quorum; see `Quorum`."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def blocking(self) -> int:
        """So many servers keep the others from being a majority."""
        ...

    def keep_open(self) -> AbstractContextManager[None]:
        """Keep the sessions of all servers."""
        ...

    async def who_holds(
        self, ttl: float, meant: Sequence[bytes] = (), tombstone_ms: int = 0
    ) -> list[tuple[bytes, int, float]]:
        """Ask each server who holds it there, and revoke what *meant* hold."""
        ...


async def revoke_of_quorum(
    quorum: Voting, ttl: float, fencing_token: int | None, *, force: bool, timeout: float | None
) -> tuple[Holder, ...]:
    """Revoke what is held of several servers, and wait until no majority of them can be.

    Raises:
        AcquireTimeoutError: It is held still after *timeout* seconds.
        QuorumError: Too few servers answered.
    """
    with quorum.keep_open():
        return await _revoke_of_quorum(quorum, ttl, fencing_token, round(1000 * LONGEST_RETRY) if force else 0, timeout)


async def _revoke_of_quorum(
    quorum: Voting, ttl: float, fencing_token: int | None, tombstone_ms: int, timeout: float | None
) -> tuple[Holder, ...]:
    fences, lasts = dict[bytes, int](), dict[bytes, float]()
    for own, fence, left in await quorum.who_holds(ttl):
        if own:
            fences[own], lasts[own] = max(fence, fences.get(own, 0)), max(left, lasts.get(own, 0.0))
    meant = [own for own, fence in fences.items() if fencing_token in (None, fence)]

    async def revoke() -> float:
        answers = await quorum.who_holds(ttl, meant, tombstone_ms)
        there = [left for own, _, left in answers if own in meant]
        return max(there, default=0.0) if len(answers) - len(there) < quorum.blocking else 0.0

    if meant:
        await wait_until_gone(f"{quorum.kind} {quorum.name!r}", quorum.name, revoke, timeout)
    return tuple(_holder(quorum.kind, fences[own], round(1000 * lasts[own]), 1) for own in meant if lasts[own])


async def revoke_all(each: Sequence[Meant], *, force: bool) -> float:
    """Revoke leases of several names; return as `Meant.revoke` does."""
    return _longest(await asyncio.gather(*(one.revoke(force=force) for one in each)))


def _longest(seconds: Sequence[float]) -> float:
    return min(seconds) if min(seconds) < 0 else max(seconds)


async def wait_until_gone(what: str, name: str, revoke: Callable[[], Awaitable[float]], timeout: float | None) -> None:
    """Do *revoke* until it returns 0: the seconds that a lease may last still.

    Raises:
        AcquireTimeoutError: One is not gone within *timeout* seconds. It is revoked all the same.
        RedisError: Redis could not be asked.
    """
    left: float | None = None

    async def repeat() -> None:
        nonlocal left
        pause = _SHORTEST_PAUSE
        while left := await revoke():
            if timeout == 0:
                raise TimeoutError
            await asyncio.sleep(min(pause, left) if left > 0 else pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)

    try:
        async with asyncio.timeout(timeout or None):
            await repeat()
    except TimeoutError as late:
        if isinstance(late, RedisTimeoutError) or timeout is None:
            raise
        if left is None:
            raise RedisTimeoutError(f"{what}: Redis did not answer within {timeout:g} s") from None
        raise AcquireTimeoutError(
            f"{what}: revoked, but still held after {timeout:g} s",
            name=name,
            timeout=timeout,
            retry_after=None if left < 0 else left,
        ) from None
