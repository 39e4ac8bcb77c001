"""Holders, waiters and newcomers of one client, whose servers are replaced meanwhile; and what became of them.

Nothing here knows what is broken, or how. What went wrong is in `problems`, in words.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, final

from redis.asyncio import Redis

from aiolocks import Lease, LeaseLostError, Lock
from tests.support.lateness import SLACK, assert_within
from tests.support.servers import RedisServer, wait_while

TTL = 10.0
HELD, NAMES, WAITERS, NEWCOMERS = 100, 10, 20, 3
MANY = 100
WORK = 0.15
"""Seconds: the last of the waiters is served only after the longest failover that was seen."""

_SERVED_WITHIN = 40.0
"""Seconds. A primary may be lost with the release of a name, which then is free when its lease is over (L3)."""

_RENEWED_WITHIN = 10.0
_PROMOTED_WITHIN = 30.0


@final
class Traffic:
    """What goes on while `traffic` lasts."""

    def __init__(self, client: Any, names: int, replicas: int) -> None:
        self._client = client
        self.names = names
        self._replicas = replicas
        self.leases: dict[str, Lease] = {}
        """Those that are held all the time, by their names."""
        self.problems: list[str] = []
        self.served = 0
        self.told = 0
        """Waiters that had a lease, lost it, and were told."""
        self.newcomers_told = 0
        self._last: dict[str, int] = {}
        self._inside: set[str] = set()

    async def hold(self) -> None:
        for number in range(HELD):
            name = f"held:{number}"
            self.leases[name] = await self._lock(name).acquire()

    async def wait(self, name: str) -> None:
        try:
            async with self._lock(name).hold(timeout=_SERVED_WITHIN) as lease:
                if name in self._inside:
                    self.problems.append(f"two hold {name!r}")
                if lease.fencing_token <= self._last.get(name, 0):
                    self.problems.append(f"the fencing token of {name!r} does not rise")
                self._last[name] = lease.fencing_token
                self._inside.add(name)
                try:
                    await asyncio.sleep(WORK)
                finally:
                    self._inside.discard(name)
            self.served += 1
        except LeaseLostError:
            self.told += 1
        except Exception as error:
            self.problems.append(f"waiter of {name!r}: {error!r}")

    async def keep_coming(self, names: Iterable[int]) -> None:
        for number in names:
            try:
                async with self._lock(f"new:{number}").hold(timeout=10):
                    pass
            except LeaseLostError:
                self.newcomers_told += 1
            except Exception as error:
                self.problems.append(f"newcomer: {error!r}")
            await asyncio.sleep(0.01)

    def _lock(self, name: str) -> Lock:
        return Lock(self._client, name, ttl=TTL, replicas=self._replicas)

    async def check(self, took: float, *, some_lost: bool = False) -> None:
        """Check that all went well, and that it *took* so long to renew all once the new primary was known.

        *some_lost*: what the old one granted in the last moment may be lost (L3).
        """
        assert self.problems == [], self.problems[:9]
        assert_within(took, SLACK * 1.0)
        assert self.told <= (NAMES if some_lost else 0)
        assert self.newcomers_told <= (NEWCOMERS if some_lost else 0)
        assert self.served + self.told == self.names * WAITERS
        assert len(self.leases) == HELD
        assert all(await asyncio.gather(*(lease.release() for lease in self.leases.values())))


@asynccontextmanager
async def traffic(client: Any, *, names: int = NAMES, replicas: int = 0) -> AsyncIterator[Traffic]:
    """Have leases held, and waiters and newcomers come and go while the block runs; at its end all must be served."""
    crowd = Traffic(client, names, replicas)
    await crowd.hold()
    numbers = itertools.count()
    coming = [asyncio.create_task(crowd.keep_coming(numbers)) for _ in range(NEWCOMERS)]
    waiting = [asyncio.create_task(crowd.wait(f"busy:{name}")) for name in range(names) for _ in range(WAITERS)]
    try:
        async with asyncio.timeout(10):
            while crowd.served < names:
                await asyncio.sleep(0.01)
        yield crowd
        async with asyncio.timeout(_SERVED_WITHIN):
            await asyncio.gather(*waiting)
    finally:
        for task in (*coming, *waiting):
            task.cancel()
        await asyncio.wait((*coming, *waiting))


def key_of(name: str) -> str:
    """Return the key of the holder of the `Lock` called *name*."""
    return f"aiolocks:lock:{{{name}}}"


async def renewed(server: RedisServer, keys: Sequence[str], since: float) -> float:
    """Return when *server* has the leases of all these keys as renewed after *since*, by what is left of them."""
    client: Any
    async with asyncio.timeout(_RENEWED_WITHIN), Redis.from_url(server.url) as client:
        while True:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.pttl(key)
            left = await pipeline.execute(raise_on_error=False)
            now = time.monotonic()
            if all(isinstance(ms, int) and ms > 1000 * (TTL - (now - since)) - 2 for ms in left):
                return now
            await asyncio.sleep(0.02)


def promoted(replicas: Sequence[RedisServer]) -> float:
    """Return the last moment at which none of these was the primary, once one is. Blocks: for a thread."""
    last = time.monotonic()

    def problem() -> str:
        nonlocal last
        now = time.monotonic()
        for server in replicas:
            operator: Any = server.operator
            if operator.execute_command("ROLE")[0] == b"master":
                return ""
        last = now
        return "no replica became the primary"

    wait_while(problem, _PROMOTED_WITHIN)
    return last
