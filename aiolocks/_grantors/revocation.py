"""Revoking (W16): no server renews the leases any more, so their holders stop, and the next waiter gets the name.

Fencing tokens that were read first select the leases. So a request that is sent again revokes no later lease, and it is
repeated until none of them is left.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from redis.exceptions import TimeoutError as RedisTimeoutError

from .._core.errors import AcquireTimeoutError
from .._core.values import Holder
from .._engine.request import LONGEST_RETRY
from .who import HolderRow, Named, holder_of

if TYPE_CHECKING:
    from .one_server import RedisGrantor
    from .quorum import Quorum

_FIRST_PAUSE = 0.02
_MAX_PAUSE = 0.25
"""Maximum number of seconds between two attempts while leases are left."""

_LOOK = -1
"""In place of the tombstones' ms: revoke nothing, only report the leases."""

_FORCE = round(1000 * LONGEST_RETRY)
"""In the same place: end the leases at once. Their tombstones last as long as a request may still arrive (W10)."""

_Row = tuple[int, int, int]
"""A fencing token; the ms that its lease has left, or -1 if it never ends; and its permits or mode."""


async def revoke(
    kind: str, name: str, grantors: Sequence["RedisGrantor"], fencing_token: int | None, *, force: bool,
    timeout: float | None, reason: bytes,
) -> tuple[Holder, ...]:  # fmt: skip
    """Revoke the leases of some names, and wait until they have ended; see `Acquirable.revoke`."""
    with grantors[0].context.in_use():  # the session of all of them
        leases = await asyncio.gather(*(_leases(grantor, fencing_token, force=force) for grantor in grantors))
        found = [(grantor, rows) for grantor, rows in zip(grantors, leases, strict=True) if rows]
        targets = [(grantor, min(rows)[0], max(rows)[0]) for grantor, rows in found]

        async def revoke_all() -> float:
            asked = (_ask(*target, _FORCE if force else 0, reason) for target in targets)
            return _longest([left for left, _ in await asyncio.gather(*asked)])

        if targets:
            await _wait_until_gone(kind, name, revoke_all, timeout)
    # W18: a lease that has 0 ms left was released before, and only `min_hold` keeps the name.
    return tuple(_holder(grantor, *row) for grantor, rows in found for row in rows if row[1])


async def _leases(grantor: "RedisGrantor", fencing_token: int | None, *, force: bool) -> list[_Row]:
    """Return the leases of a name, or the one with this fencing token."""
    first, last = (0, 2**53 - 1) if fencing_token is None else (fencing_token, fencing_token)
    left, rows = await _ask(grantor, first, last, _LOOK)
    if left < 0 and not force:
        raise RuntimeError(
            f"{grantor.kind} {grantor.name!r}: its holder is not one of this library, or nothing is known of it, so "
            "it cannot be asked to stop; force=True ends its lease all the same"
        )
    return rows


async def _ask(
    grantor: "RedisGrantor", first: int, last: int, tombstone_ms: int, reason: bytes = b""
) -> tuple[float, list[_Row]]:
    """Revoke the leases with fencing tokens from *first* to *last*; with `_LOOK`, only report them.

    Return the seconds until the last one ends, below 0 if one cannot be marked; and the leases.
    """
    longest, found = 0.0, list[_Row]()
    place = b""
    while True:
        args = (b"%d %d %b" % (first, last, place) if place else b"%d %d" % (first, last), tombstone_ms, reason)
        [left_ms, place, *rows], *_ = await grantor.ask("revoke", args, as_waiter=True)
        fields = iter(rows)
        found += zip(fields, fields, fields, strict=True)
        longest = _longest([longest, left_ms / 1000])
        if not place:
            return longest, found


def _holder(grantor: "RedisGrantor", fence: int, left_ms: int, amount: int) -> Holder:
    return holder_of(HolderRow(b"", b"", fence, left_ms, amount), Named(), grantor)


async def revoke_of_quorum(
    quorum: "Quorum", ttl: float, fencing_token: int | None, *, force: bool, timeout: float | None, reason: bytes
) -> tuple[Holder, ...]:
    """Revoke the leases on several servers, and wait until no majority of them can be held."""
    fences, lasts = dict[bytes, int](), dict[bytes, float]()
    with quorum.keep_open():
        for own, fence, left in await quorum.revoke(ttl):
            if own:
                fences[own], lasts[own] = max(fence, fences.get(own, 0)), max(left, lasts.get(own, 0.0))
        targets = [own for own, fence in fences.items() if fencing_token in (None, fence)]

        async def revoke_targets() -> float:
            answers = await quorum.revoke(ttl, targets, _FORCE if force else 0, reason)
            held = [left for own, _, left in answers if own in targets]
            return max(held, default=0.0) if len(answers) - len(held) < quorum.blocking else 0.0

        if targets:
            await _wait_until_gone(quorum.kind, quorum.name, revoke_targets, timeout)
    first = quorum.grantors[0]
    return tuple(_holder(first, fences[own], round(1000 * lasts[own]), 1) for own in targets if lasts[own])


def _longest(seconds: Sequence[float]) -> float:
    return min(seconds) if min(seconds) < 0 else max(seconds)


async def _wait_until_gone(
    kind: str, name: str, revoke_them: Callable[[], Awaitable[float]], timeout: float | None
) -> None:
    """Repeat *revoke_them* until it returns 0: the seconds until the last lease ends, or less if that is not known."""
    left: float | None = None
    pause = _FIRST_PAUSE
    try:
        async with asyncio.timeout(timeout or None):
            while left := await revoke_them():
                if timeout == 0:
                    raise TimeoutError
                await asyncio.sleep(min(pause, left) if left > 0 else pause)
                pause = min(1.5 * pause, _MAX_PAUSE)
    except TimeoutError as late:
        if isinstance(late, RedisTimeoutError) or timeout is None:
            raise
        if left is None:
            raise RedisTimeoutError(f"{kind} {name!r}: Redis did not answer within {timeout:g} s") from None
        text, retry_after = f"{kind} {name!r}: revoked, but still held after {timeout:g} s", None if left < 0 else left
        raise AcquireTimeoutError(text, name=name, timeout=timeout, retry_after=retry_after) from None
