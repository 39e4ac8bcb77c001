"""The client is the user's, however it was made: it is used as it is, and left as it was."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, Redis

from aiolocks import Lock, Semaphore
from tests.support.inside import pool_connections, sessions_here
from tests.support.lateness import kept
from tests.support.primitives import queued

CLIENTS: dict[str, Callable[[str], Redis]] = {
    "one connection": lambda url: Redis.from_pool(BlockingConnectionPool.from_url(url, max_connections=1, timeout=0.5)),
    "RESP2": lambda url: Redis.from_url(url, protocol=2),
    "RESP3": lambda url: Redis.from_url(url, protocol=3),
    "RESP2, decoding": lambda url: Redis.from_url(url, protocol=2, decode_responses=True),
    "RESP3, decoding": lambda url: Redis.from_url(url, protocol=3, decode_responses=True),
    "decoding Latin-1": lambda url: Redis.from_url(url, decode_responses=True, encoding="latin-1"),
    "single connection": lambda url: Redis.from_url(url, single_connection_client=True),
    "another database": lambda url: Redis.from_url(f"{url}?db=3"),
    "health checks": lambda url: Redis.from_url(url, health_check_interval=1),
    "short socket timeout": lambda url: Redis.from_url(url, socket_timeout=0.2, socket_connect_timeout=0.2),
    "one connection, RESP3, decoding": lambda url: Redis.from_pool(
        BlockingConnectionPool.from_url(url, max_connections=1, timeout=0.5, protocol=3, decode_responses=True)
    ),
}


def state_of(pool: Any) -> dict[str, object]:
    """Return what a pool was told and what it has."""
    free, in_use = pool_connections(pool)
    return {
        "settings": dict(pool.connection_kwargs), "class": pool.connection_class, "most": pool.max_connections,
        "free": len(free), "in use": len(in_use),
    }  # fmt: skip


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
async def test_a_client_of_any_make_acquires_waits_and_releases_and_its_pool_stays_as_it_was(
    tcp_url: str, make: Callable[[str], Redis]
) -> None:
    async with make(tcp_url) as client:
        await client.ping()
        before = state_of(client.connection_pool)
        for acquirable in (Lock(client, "ünï {any}", ttl=1.2), Semaphore(client, "ünï {any}", 1, ttl=1.2)):
            async with kept(1.2), acquirable as lease:
                waiters = [asyncio.create_task(acquirable.acquire()) for _ in range(3)]
                await client.ping()  # the one connection is free for the user
                await queued(acquirable, 3)
                await asyncio.sleep(0.5)  # it is renewed
                lease.check()
                assert not any(waiter.done() for waiter in waiters)
            for waiter in waiters:
                await (await waiter).release()
            assert await acquirable.try_acquire(), "nobody else is there"
            await acquirable.release()
        assert state_of(client.connection_pool) == before


async def test_a_thousand_clients_of_one_pool_make_one_session(redis: Redis) -> None:
    """As when every request makes its own `Redis(connection_pool=pool)`."""
    before = sessions_here()
    connected = (await redis.info("clients"))["connected_clients"]
    clients = [Redis(connection_pool=redis.connection_pool) for _ in range(1000)]
    async with contextlib.AsyncExitStack() as stack:
        for number, client in enumerate(clients):
            await stack.enter_async_context(Lock(client, f"orders:{number}"))
        assert sessions_here() == before + 1
        assert (await redis.info("clients"))["connected_clients"] <= connected + 1
