"""A trial: hand a lock and a semaphore from one session to another, as between two processes."""

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Protocol

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ..._core.values import Statistics
from ..._engine.lease import Lease
from ..._manager import LockManager
from .._connect import PATIENCE, delete_keys, reason
from ._finding import Finding, Verdict

_TTL = 5.0
_POLL_INTERVAL = 0.01
_FIX_FIRST = "correct the server's error; locks do not work before"


class _Acquirable(Protocol):
    def acquire(self, *, timeout: float | None = ...) -> Awaitable[Lease]: ...
    async def statistics(self) -> Statistics: ...


async def hand_over(one: Redis, other: Redis, prefix: str, name: str, url: str) -> Finding:
    """Let *other* wait while *one* holds, for a lock and a semaphore. Delete all keys afterwards."""
    mine, theirs = LockManager(one, ttl=_TTL, prefix=prefix), LockManager(other, ttl=_TTL, prefix=prefix)
    took: list[float] = []
    try:
        took.append(await _from_to(mine.lock(name), theirs.lock(name)))
        took.append(await _from_to(mine.semaphore(name, 1), theirs.semaphore(name, 1)))
    except RedisError as error:
        return Finding("hand-over", Verdict.DANGER, f"failed: {reason(error, url)}", _FIX_FIRST)
    finally:
        with suppress(RedisError):
            await delete_keys(one, name, prefix)
    found = f"a lock and a semaphore went from one session to another, in {1000 * max(took):.3g} ms at most"
    return Finding("hand-over", Verdict.OK, found, figures={"worst_s": round(max(took), 6)})


def not_tried(why: str) -> Finding:
    return Finding("hand-over", Verdict.UNKNOWN, f"not tried: {why}", "correct that first, and run doctor again")


def refused(why: str) -> Finding:
    return Finding("hand-over", Verdict.DANGER, f"the server refuses writes: {why}", _FIX_FIRST)


async def _from_to(mine: _Acquirable, theirs: _Acquirable) -> float:
    """Return the seconds from the release to the grant."""
    lease = await mine.acquire(timeout=PATIENCE)
    waiting = asyncio.ensure_future(theirs.acquire(timeout=PATIENCE))
    try:
        while not waiting.done() and not (await mine.statistics()).waiting:  # noqa: ASYNC110  # only the server knows
            await asyncio.sleep(_POLL_INTERVAL)
        released_at = time.monotonic()
    except BaseException:
        waiting.cancel()
        raise
    finally:
        await lease.release()
    following = await waiting
    took = time.monotonic() - released_at
    await following.release()
    if following.fencing_token <= lease.fencing_token:
        raise RedisError(f"the fencing token {following.fencing_token} came after {lease.fencing_token}")
    return took
