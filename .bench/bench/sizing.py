"""What a server, and the processes that use it, have to be sized for: `python .bench sizing`.

Connections, memory and processor time, each by what it grows with. It takes about a minute and a half. Figures of
processor time are rough. The others are exact, except for the behaviour of the server's allocator.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import redis
from redis.asyncio import Redis

from aiolocks import Lease, Lock, Semaphore
from tests.support.clusters import ClusterSet
from tests.support.sentinels import SentinelSet
from tests.support.servers import RedisServer

MANY = 5_000
"""Number of locks, waiters or permits by which the memory is divided."""

SECONDS = 4.0
RENEWED_TTL = 1.5
"""TTL so short that each lease is renewed as often as twenty leases of 30 s."""


def cpu(server: RedisServer) -> float:
    info: Any = server.operator.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def memory(server: RedisServer) -> int:
    info: Any = server.operator.info("memory")
    return int(info["used_memory"]) - int(info["mem_clients_normal"])


def connections(server: RedisServer) -> int:
    """Return the number of connections, without those of operators, replicas and other nodes."""
    with redis.Redis(port=server.port) as own:
        listed: Any = own.client_list()
        return sum(one["name"] == "sizing" for one in listed)


async def crowd(client: Any, names: int, waiting: int) -> tuple[list[Lease], list[asyncio.Task[Lease]]]:
    """Hold *names* locks, and wait for the first *waiting* of them."""
    locks = [Lock(client, f"name {number}", ttl=60) for number in range(names)]
    held = list(await asyncio.gather(*(lock.acquire() for lock in locks)))
    waiters = [asyncio.create_task(lock.acquire(timeout=300)) for lock in locks[:waiting]]
    await asyncio.sleep(1.5)
    return held, waiters


async def links(title: str, client: Any, nodes: list[RedisServer]) -> None:
    before = list(map(connections, nodes))  # redis-py's own, which asks for a Cluster's slots when it is entered
    held, waiters = await crowd(client, 200, 200)
    counts = [connections(node) - earlier for node, earlier in zip(nodes, before, strict=True)]
    print(f"connections  {title:40} {sum(counts):3} in all, {max(counts)} to one server", flush=True)
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)
    await asyncio.gather(*(lease.release() for lease in held))
    await asyncio.sleep(1.2)
    print(f"connections  {title + ', idle':40} {sum(map(connections, nodes)) - sum(before):3}", flush=True)


async def bytes_each(title: str, server: RedisServer, more: Callable[[], Awaitable[object]], count: int = MANY) -> None:
    before = memory(server)
    await more()
    print(f"memory       {title:40} {(memory(server) - before) / count:5.0f} B", flush=True)


async def sizes(client: Redis, server: RedisServer) -> None:
    held: list[Lease] = []
    waiters: list[asyncio.Task[Lease]] = []
    scraper = Semaphore(client, "scraper", 10**6, ttl=600)

    async def hold(make: Callable[[int], Awaitable[Lease]]) -> None:
        held.extend(await asyncio.gather(*map(make, range(MANY))))

    async def wait() -> None:
        busy = Lock(client, "held 0", ttl=600)
        waiters.extend(asyncio.create_task(busy.acquire(timeout=300)) for _ in range(MANY))
        await asyncio.sleep(3)

    async def drop() -> None:
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        await asyncio.gather(*(lease.release() for lease in held))

    await Lock(client, "warm", ttl=60).locked()
    beginning = memory(server)
    await bytes_each("a held lock", server, lambda: hold(lambda n: Lock(client, f"held {n}", ttl=600).acquire()))
    await bytes_each("a waiter", server, wait)
    await bytes_each("a permit in use", server, lambda: hold(lambda _: scraper.acquire()))
    await drop()
    print(f"memory       {'a name, for a day after its last lease':40} {(memory(server) - beginning) / MANY:5.0f} B")


async def times(client: Redis, server: RedisServer) -> None:
    async def pairs(number: int, until: float) -> int:
        count, lock = 0, Lock(client, f"own {number}")
        while time.monotonic() < until:
            async with lock:
                count += 1
        return count

    async def measure(title: str, tasks: list[Callable[[float], Awaitable[int]]]) -> None:
        served, used = cpu(server), time.process_time()
        until = time.monotonic() + SECONDS
        count = sum(await asyncio.gather(*(task(until) for task in tasks)))
        server_us, client_us = 1e6 * (cpu(server) - served) / count, 1e6 * (time.process_time() - used) / count
        print(f"processor    {title:40} server {server_us:5.1f} µs, client {client_us:5.1f} µs", flush=True)

    def own(number: int) -> Callable[[float], Awaitable[int]]:
        return lambda until: pairs(number, until)

    await measure("a pair, one task", [own(0)])
    await measure("a pair, 100 tasks on their own locks", [own(number) for number in range(100)])
    await measure("a hand-off within a process, 100 tasks", [own(0)] * 100)

    held = await asyncio.gather(*(Lock(client, f"kept {n}", ttl=RENEWED_TTL).acquire() for n in range(2_000)))
    await asyncio.sleep(RENEWED_TTL)
    served, used, begun = cpu(server), time.process_time(), time.monotonic()
    await asyncio.sleep(2 * SECONDS)
    took = time.monotonic() - begun
    kept = sum(lease.held for lease in held)
    scale = kept * 30 / RENEWED_TTL
    server_share, client_share = (cpu(server) - served) / took, (time.process_time() - used) / took
    print(
        f"renewals     leases of 30 s for a whole core: {scale / server_share:,.0f} of the server, "
        f"{scale / client_share:,.0f} of the client"
    )
    await asyncio.gather(*(lease.release() for lease in held))


async def main() -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(RedisServer())
        async with Redis.from_url(server.url, client_name="sizing") as client:
            await links("one server", client, [server])
            await sizes(client, server)
            await times(client, server)
        behind = stack.enter_context(SentinelSet())
        async with behind.client(sentinel_kwargs={"client_name": "sizing"}, client_name="sizing") as client:
            await links("one primary, 3 Sentinels", client, [behind.primary(), *behind.sentinels])
        for primaries in (3, 6):
            with ClusterSet(primaries=primaries, replicas=0) as cluster:
                async with cluster.client(client_name="sizing") as client:
                    await links(f"a Cluster of {primaries} primaries", client, cluster.primaries())
