"""Sees that replicas have a grant before anybody acts on it: over a connection of its own, as WAIT blocks it.

WAIT counts what its own connection has written, and the grant may have been written by whoever let go. So each grant
is written once more there; and one WAIT serves all that came while the one before it was on its way.
"""

import asyncio
from collections.abc import Callable
from typing import Any, final

from redis.exceptions import ConnectionError as RedisConnectionError

from ._bound import Arguments, Bound, pack
from ._commands import Call, Commands
from ._request import resolve


@final
class Whole:
    """A script that is sent whole each time: sent again after NOSCRIPT, it would come behind its own WAIT."""

    __slots__ = ("by_digest", "name", "whole")

    def __init__(self, bound: Bound) -> None:
        self.name = bound.name
        self.by_digest = self.whole = bound.whole


@final
class _Wait:
    name = "WAIT"

    def whole(self, args: Arguments) -> bytes:
        return pack(("WAIT", *args))

    by_digest = whole


_WAIT = _Wait()


@final
class Replication:
    """What one session waits for; it connects when something first asks for replicas."""

    def __init__(self, pool: Any, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self.commands = Commands(pool, loop, clock, lambda: None)
        self._behind: list[tuple[Call, int, float, asyncio.Future[int]]] = []
        self._on_its_way = False

    def acknowledged(self, written: Call, replicas: int, bound: float) -> "asyncio.Future[int]":
        """Return how many replicas have what *written* wrote: so many, or as many as do after *bound* seconds."""
        future: asyncio.Future[int] = self.commands.loop.create_future()
        self._behind.append((written, replicas, bound, future))
        if not self._on_its_way:
            self._wait()
        return future

    def _wait(self) -> None:
        asked, self._behind = self._behind, []
        self._on_its_way = True
        most = max(replicas for _, replicas, _, _ in asked)
        longest = max(bound for _, _, bound, _ in asked)
        args = (most, round(1000 * longest))
        self.commands.submit(_WAIT, args, self._answered, longest + self.commands.patience, asked)

    def _answered(self, call: Call, reply: Any) -> None:
        self._on_its_way = False
        for written, _, _, future in call.subject:
            # Over another connection, which has written nothing, Redis says at once that all have it.
            lost = not isinstance(reply, Exception) and written.link is not call.link
            resolve(future, RedisConnectionError("Connection lost while replicas were waited for") if lost else reply)
        if self._behind:
            self._wait()
