"""Refreshes a board, over a new connection after an error, so that `watch` survives an outage."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import final

from ..._core.untyped import untyped
from ..._redis.clients import behind_sentinels, pool_of
from .. import _names
from .._arguments import Unusable
from .._connect import PATIENCE, REFUSALS, reason
from .._nodes import Primaries, primaries
from ._board import Board

_RECONNECT_INTERVAL = 10.0
"""Interval between two connections while a primary of a Cluster is missing. A hung one costs seconds each time."""


@final
class Watcher:
    """Refreshes one board.

    Invariant: while `_found` is None there is no connection, and the next refresh opens one.
    """

    def __init__(self, board: Board, url: str) -> None:
        self.board = board
        self._url = url
        self._stack = AsyncExitStack()
        self._found: Primaries | None = None
        self._found_at = 0.0

    async def begin(self) -> None:
        """Connect and read all names.

        Raises:
            Unusable: The server cannot be asked.
        """
        try:
            await self._connect()
            await self.board.begin()
        except (*REFUSALS, OSError) as error:
            raise Unusable(f"Redis cannot be asked: {self._why(error)}") from None

    async def refresh(self, visible: Sequence[_names.Name], inspected: _names.Name | None = None) -> None:
        """See `Board.refresh`. If the server does not answer, the board shows since when and why."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._connect()
                await self.board.refresh(visible, inspected)
        except BrokenPipeError:
            raise  # the reader of our output has gone
        except (Unusable, *REFUSALS, OSError) as error:
            await self.close()
            self.board.lose(datetime.now(UTC), self._why(error))

    async def close(self) -> None:
        self._found = None
        await self._stack.aclose()

    async def _connect(self) -> None:
        clock = asyncio.get_running_loop().time
        if self._found is not None and self._found.missing and clock() > self._found_at + _RECONNECT_INTERVAL:
            await self.close()  # a replica of the missing primary may have been promoted
        if self._found is None:
            self._found = await self._stack.enter_async_context(primaries(self._url))
            self._found_at = clock()
            self.board.connected(self._found)
        for pool in map(pool_of, self._found.nodes):
            if behind_sentinels(pool):  # a deposed primary answers for up to 11 s
                await untyped(pool).get_master_address()

    def _why(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {PATIENCE:g} s"
        return str(error) if isinstance(error, Unusable) else reason(error, self._url)
