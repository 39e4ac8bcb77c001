"""A server is killed under a lease that is not renewed, and starts empty: `min_uptime` keeps a second holder out."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis

from aiolocks import Lease, Lock, QuorumError, Redlock
from tests.support.primitives import queued
from tests.support.servers import RedisServer

TTL = 2


def lock_of(clients: list[Redis], ttl: float, min_uptime: float) -> Lock | Redlock:
    if len(clients) == 1:
        return Lock(clients[0], "orders", ttl=ttl, renew=False, min_uptime=min_uptime)
    return Redlock(clients, "orders", ttl=ttl, renew=False, min_uptime=min_uptime)


async def insistently(lock: Lock | Redlock) -> Lease:
    """Acquire it; where too few servers have a vote, ask again."""
    while True:
        try:
            return await lock.acquire()
        except QuorumError:
            continue


async def held_when_next_has_it(start: Callable[..., RedisServer], kind: str, ttl: float, min_uptime: float) -> bool:
    """Whether a lease still counts when another caller is granted the name, as a server that granted it was killed."""
    servers = [start() for _ in range(1 if kind == "lock" else 3)]
    async with AsyncExitStack() as stack:
        holders, others = [
            [await stack.enter_async_context(Redis.from_url(server.tcp_url)) for server in servers] for _ in range(2)
        ]
        for server in servers[2:]:
            await asyncio.to_thread(server.kill)
        lease = await lock_of(holders, ttl, 0).acquire()  # the servers are new, and it need not wait for that
        for server in servers[2:]:
            await asyncio.to_thread(server.restart)
        waiting = asyncio.create_task(insistently(lock_of(others, ttl, min_uptime)))
        if kind == "lock":
            await queued(lock_of(others, ttl, min_uptime), 1)
        await asyncio.to_thread(servers[0].kill)
        await asyncio.to_thread(servers[0].restart)
        assert lease.remaining() > 0, "the machine was too slow: the lease ran out before the server was back"
        next_lease = await asyncio.wait_for(waiting, 10 * ttl)
        both = lease.held
        assert await next_lease.release()
        await lease.release()
    return both


@pytest.mark.parametrize("kind", ["lock", "redlock"])
async def test_only_without_min_uptime_there_is_a_second_holder_after_a_server_has_started_empty(
    servers: Callable[..., RedisServer], kind: str
) -> None:
    assert not await held_when_next_has_it(servers, kind, TTL, TTL)
    assert await held_when_next_has_it(servers, kind, 10 * TTL, 0), "or this test would show nothing"
