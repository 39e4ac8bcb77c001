"""Tasks that take a lock or a permit in turns while something befalls it; and what they saw."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, final

from tests.support.network import until


@final
class Turns:
    """What goes on while `turns` lasts."""

    def __init__(self, passing: tuple[type[Exception], ...]) -> None:
        self.count = 0
        self.most = 0
        """Were inside at the same time."""
        self._inside = 0
        self._ended = False
        self._passing = passing

    async def take(self, acquirable: Any) -> None:
        while not self._ended:
            try:
                async with acquirable as lease:
                    self._inside += 1
                    self.most = max(self.most, self._inside)
                    try:
                        await asyncio.sleep(random.uniform(0, 0.01))
                    finally:
                        self._inside -= 1
                    lease.check()
                    self.count += 1
            except self._passing:
                pass

    async def go_on(self) -> None:
        """Return when all tasks have had another turn, about."""
        wanted = self.count + 20
        await until(lambda: self.count >= wanted)

    def end(self) -> None:
        self._ended = True


@asynccontextmanager
async def turns(
    acquirables: Iterable[Any], *, tasks: int = 5, passing: tuple[type[Exception], ...] = ()
) -> AsyncIterator[Turns]:
    """Have so many tasks take each of *acquirables* while the block runs; they may meet the *passing* errors only."""
    busy = Turns(passing)
    running = [asyncio.create_task(busy.take(each)) for each in acquirables for _ in range(tasks)]
    try:
        await busy.go_on()
        yield busy
        await busy.go_on()
    finally:
        busy.end()
        await asyncio.gather(*running)
