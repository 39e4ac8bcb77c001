"""Waits until enough replicas have a grant, before its holder acts: over a connection of its own, as WAIT blocks it.

WAIT counts what its own connection has written, and the grant may have been written by the holder before. So each
grant is written once more there; and one WAIT, a short one, serves all that came while the last was on its way.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, final

from redis.exceptions import ConnectionError as RedisConnectionError

from .._core.answers import NoPrimaryError
from .._core.replies import check_reply
from .._engine.request import resolve, resolve_call
from .._redis.connection import Endpoint
from .._redis.pipeline import PendingCall, Pipeline
from .._redis.scripts import Command, PlainCommand

LONGEST_REPLICATION = 1.0
"""Seconds for which replicas are waited for; a quarter of the TTL, if that is less."""


@final
class AlwaysEval:
    """A script that is sent whole each time: sent again after NOSCRIPT, it would come behind its own WAIT."""

    __slots__ = ("eval", "evalsha", "name")

    def __init__(self, bound: Command) -> None:
        self.name = bound.name
        self.eval = self.evalsha = bound.eval


_WAIT = PlainCommand("WAIT")

_ROLE = PlainCommand("ROLE")
"""Its answer lists the replicas that are connected."""

_SLICE = 0.05
"""Seconds for which one WAIT blocks its connection at most: what comes meanwhile stands behind it."""


class _Asked(NamedTuple):
    written: PendingCall
    replicas: int
    bound: float
    future: asyncio.Future[int]

    def until(self, now: float) -> float:
        """Return the local time from which on as many as have it must do; the time to connect does not count."""
        return (now if self.written.link is None else self.written.sent_at) + self.bound


@final
class Replication:
    """What one session waits for; it connects when something first asks for replicas."""

    def __init__(self, endpoint: Endpoint, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.pipeline = Pipeline(endpoint, loop, clock, lambda: None)
        self._clock = clock
        self._asked: list[_Asked] = []
        self._on_its_way = False

    async def count(self, wanted: Literal["majority", "all"]) -> int:
        """Return how many replicas that is at this moment.

        Raises:
            RedisError: Redis could not be asked.
        """
        answer: asyncio.Future[Any] = self.pipeline.loop.create_future()
        self.pipeline.submit(_ROLE, (), resolve_call, self.pipeline.patience, None, answer)
        role, _, replicas, *_ = await answer
        if role != b"master":
            raise NoPrimaryError(f"it takes {wanted} of a primary's replicas, and the server is none")
        return len(replicas) if wanted == "all" else (1 + len(replicas)) // 2

    def patience(self, bound: float) -> float:
        """Return the seconds to wait for any reply, where *bound* is for how long replicas are waited for."""
        return bound + _SLICE + self.pipeline.patience

    def acknowledged(self, written: PendingCall, replicas: int, bound: float) -> "asyncio.Future[int]":
        """Return how many replicas have what *written* wrote: so many, or as many as do after *bound* seconds.

        A caller that needs it no more cancels it.
        """
        future: asyncio.Future[int] = self.pipeline.loop.create_future()
        self._asked.append(_Asked(written, replicas, bound, future))
        if not self._on_its_way:  # defect: W13-together
            self._wait()
        return future

    def _wait(self) -> None:
        self._asked = [each for each in self._asked if not each.future.done()]
        if not self._asked:
            return
        asked = tuple(self._asked)  # of these alone: the answer says nothing of what is written behind the WAIT
        self._on_its_way = True
        now = self._clock()
        # For the least that any of them asks: so each WAIT comes back as soon as one of them has what it waits for.
        least = min(each.replicas for each in asked)
        # equivalent: constant, it is rounded
        slice_ms = round(1000 * min(_SLICE, *(each.until(now) - now for each in asked)))  # defect: W13-slice
        patience = self.patience(max(each.bound for each in asked))
        self.pipeline.submit(_WAIT, (least, max(slice_ms, 1)), self._answered, patience, asked)  # 0 would be for ever

    def _answered(self, call: PendingCall, reply: Any) -> None:
        failed = isinstance(reply, Exception)  # then those behind it get no answer over this connection either
        if not failed:
            check_reply(call.bound.name, reply)
        self._on_its_way = False
        now = self._clock()
        for each in self._asked if failed else call.subject:
            if failed:
                resolve(each.future, reply)
            elif each.written.link is not call.link:
                # Over another connection, which has written nothing, Redis says at once that all have it.
                resolve(each.future, RedisConnectionError("Connection lost while replicas were waited for"))
            elif reply >= each.replicas or now >= each.until(now):
                resolve(each.future, reply)
        self._wait()
