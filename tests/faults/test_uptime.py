"""A server that is killed under a held lease and starts empty: with `min_uptime` there is no second holder.

The holder does not renew, so that it believes in its lease until its own deadline, as one does that is stopped or cut
off. That is the case which an empty restart breaks: whoever comes next is granted the name at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import final

import pytest
from redis.asyncio import Redis

from aiolocks import Lease, Lock, QuorumError, Redlock
from tests.support.primitives import queued
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.asyncio, pytest.mark.redis, pytest.mark.faults]

TTL = 2
KINDS = ["lock", "redlock"]
RUNS = 20


@final
@dataclass(frozen=True, slots=True)
class Scene:
    """One server, or three; a holder's client of each, and another process's."""

    servers: list[RedisServer]
    holders: list[Redis]
    others: list[Redis]

    def lock(self, clients: list[Redis], ttl: float, min_uptime: float, *, renew: bool = False) -> Lock | Redlock:
        if len(clients) == 1:
            return Lock(clients[0], "orders", ttl=ttl, renew=renew, min_uptime=min_uptime)
        return Redlock(clients, "orders", ttl=ttl, renew=renew, min_uptime=min_uptime)

    async def start_empty(self) -> None:
        """Kill the server that has the lease, and start it again; of three, one of the two that have granted it."""
        await asyncio.to_thread(self.servers[0].kill)
        await asyncio.to_thread(self.servers[0].restart)


@asynccontextmanager
async def scene(kind: str, servers: Callable[..., RedisServer]) -> AsyncIterator[Scene]:
    running = [servers() for _ in range(1 if kind == "lock" else 3)]
    async with AsyncExitStack() as stack:
        holders, others = [
            [await stack.enter_async_context(Redis.from_url(server.tcp_url)) for server in running] for _ in range(2)
        ]
        yield Scene(running, holders, others)


async def insistently(lock: Lock | Redlock) -> Lease:
    """Acquire it; where too few servers have a vote, ask again."""
    while True:
        try:
            return await lock.acquire()
        except QuorumError:
            continue


async def held_when_the_next_has_it(scene: Scene, ttl: float, min_uptime: float) -> bool:
    """Whether a lease still counts for its holder when another is granted the name, its server having been killed."""
    if len(scene.servers) > 1:
        await asyncio.to_thread(scene.servers[2].kill)  # the two others grant it
    lease = await scene.lock(scene.holders, ttl, 0).acquire()  # the servers are new, and it need not wait for that
    if len(scene.servers) > 1:
        await asyncio.to_thread(scene.servers[2].restart)
    waiting = asyncio.create_task(insistently(scene.lock(scene.others, ttl, min_uptime)))
    if len(scene.servers) == 1:
        await queued(scene.lock(scene.others, ttl, min_uptime), 1)
    await scene.start_empty()
    left = lease.remaining()
    assert left > 0, "the machine was too slow: the lease ran out before the server was back"
    next_lease = await asyncio.wait_for(waiting, 10 * ttl)
    both = lease.held
    print(f"{'both hold it' if both else 'the next has it when the first lease is over'}; {left:.2f} s were left")
    assert await next_lease.release()
    await lease.release()
    return both


@pytest.mark.parametrize("kind", KINDS)
async def test_no_second_holder_after_a_server_has_started_empty(
    servers: Callable[..., RedisServer], kind: str
) -> None:
    async with scene(kind, servers) as one:
        assert not await held_when_the_next_has_it(one, TTL, TTL)


@pytest.mark.parametrize("kind", KINDS)
async def test_without_it_there_is_one(servers: Callable[..., RedisServer], kind: str) -> None:
    """Or the test above would show nothing."""
    async with scene(kind, servers) as one:
        assert await held_when_the_next_has_it(one, 10 * TTL, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_all_waiters_get_the_lock_in_the_end_and_one_at_a_time(
    servers: Callable[..., RedisServer], kind: str
) -> None:
    async with scene(kind, servers) as one:
        inside = most = 0

        async def visit(clients: list[Redis]) -> None:
            nonlocal inside, most
            lease = await insistently(one.lock(clients, TTL, TTL, renew=True))
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1
            assert await lease.release()

        first = await one.lock(one.holders, TTL, 0).acquire()
        visits = [asyncio.create_task(visit(clients)) for clients in [one.holders, one.others] * 3]
        if kind == "lock":
            await queued(one.lock(one.others, TTL, TTL), len(visits))
        await one.start_empty()
        await asyncio.wait_for(asyncio.gather(*visits), 10 * TTL)
        await first.release()
    assert most == 1


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", KINDS)
async def test_no_second_holder_in_as_many_runs_as_are_promised(servers: Callable[..., RedisServer], kind: str) -> None:
    async with AsyncExitStack() as stack:
        scenes = [await stack.enter_async_context(scene(kind, servers)) for _ in range(RUNS)]
        both = await asyncio.gather(*(held_when_the_next_has_it(one, 10, 10) for one in scenes))
    print(f"{kind}: no second holder in {both.count(False)} of {RUNS} runs")
    assert not any(both)
