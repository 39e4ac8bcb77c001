"""pottery's AIORedlock: with one master, so a quorum of one server; or with several.

One object per task, as the object keeps the holder's id.

On several servers two more ways are measured. One is a client that gives up on a silent server after 0.1 s, where
redis-py's default is 5 s. The other is pottery's Redlock for synchronous clients, called in threads: unlike AIORedlock,
it does not wait for the last server's answer.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Never

from pottery import AIORedlock, Redlock
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from bench.peers import SAFETY, Turn
from bench.peers.pools import client_of


class _Client:
    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def lock(self, name: str, ttl: float = SAFETY, **options: Never) -> Turn:
        return _aio({self._redis}, name, ttl)

    def semaphore(self, name: str, limit: int) -> Turn:
        raise NotImplementedError


@asynccontextmanager
async def connect(url: str, connections: int | None) -> AsyncIterator[_Client]:
    _be_quiet()
    async with client_of(url, connections) as redis:
        yield _Client(redis)


@asynccontextmanager
async def connect_quorum(urls: Sequence[str], way: str) -> AsyncIterator[Callable[[str], Turn]]:
    _be_quiet()
    async with AsyncExitStack() as stack:
        if way == "Redlock in threads":
            several = {stack.enter_context(SyncRedis.from_url(url)) for url in urls}
            yield lambda name: _threaded(several, name)
        else:
            options: dict[str, Any] = {} if way == "AIORedlock" else {"socket_timeout": 0.1}
            masters = {await stack.enter_async_context(Redis.from_url(url, **options)) for url in urls}
            yield lambda name: _aio(masters, name, SAFETY)


def _aio(masters: set[Redis], name: str, ttl: float) -> Turn:
    lock = AIORedlock(key=name, masters=masters, auto_release_time=ttl)
    return Turn(lock.acquire, lambda _: lock.release(), block=lambda: lock)


def _threaded(masters: set[SyncRedis], name: str) -> Turn:
    lock = Redlock(key=name, masters=masters, auto_release_time=SAFETY)
    return Turn(lambda: asyncio.to_thread(lock.acquire), lambda _: asyncio.to_thread(lock.release))


def _be_quiet() -> None:
    logging.getLogger("pottery").setLevel(logging.CRITICAL)  # logging its tracebacks would take most of the time
