"""aiolocks on a client of redis-py with the default pool."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from redis.asyncio import Redis

import aiolocks
from aiolocks import Lease, Lock, LockManager, Redlock, RWLock, Semaphore
from aiolocks._redis.scripts import load
from bench.peers import SAFETY, Turn
from bench.peers.pools import retrying
from bench.processes import check_package

check_package(aiolocks.__file__)


def _fence(lease: Lease) -> int:
    return lease.fencing_token


class _Client:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def lock(self, name: str, ttl: float = SAFETY, **options: Any) -> Turn:
        new = partial(Lock, self._redis, name, ttl=ttl, **options)
        lock = new()
        return Turn(lock.acquire, Lease.release, _fence, load("lock/release").sha, lambda: lock, new)

    def semaphore(self, name: str, limit: int) -> Turn:
        semaphore = Semaphore(self._redis, name, limit, ttl=SAFETY)
        return Turn(semaphore.acquire, Lease.release, _fence, block=lambda: semaphore)

    def shared(self, name: str, mode: str) -> Turn:
        rw = RWLock(self._redis, name, ttl=SAFETY)
        side = {"read": rw.read, "upgradeable": rw.upgradeable, "write": rw.write}[mode]
        return Turn(side.acquire, Lease.release, _fence, block=lambda: side)

    def maker(self, way: str) -> Callable[[str], AbstractAsyncContextManager[Any]]:
        return LockManager(self._redis).lock if way == "manager" else partial(Lock, self._redis)


@asynccontextmanager
async def connect(url: str, connections: int | None) -> AsyncIterator[_Client]:
    assert connections is None, "one connection, whatever the size of the pool"
    async with Redis.from_url(url, retry=retrying()) as redis:
        yield _Client(redis)


@asynccontextmanager
async def connect_quorum(urls: Sequence[str], way: str) -> AsyncIterator[Callable[[str], Turn]]:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Redis.from_url(url)) for url in urls]

        def lock(name: str) -> Turn:
            redlock = Redlock(clients, name, ttl=SAFETY)
            return Turn(redlock.acquire, Lease.release, _fence, block=lambda: redlock)

        yield lock
