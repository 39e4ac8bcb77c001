"""Move money between accounts on different nodes of a Redis Cluster, under one lease.

    python examples/cluster.py

prints (with a Cluster of three primaries, one of them on localhost, port 7000; or append a URL like the one below)

    both accounts locked, on 2 nodes
    70 and 130
    still 70, written only while the lease is the current one
"""

import asyncio
import sys

from redis.asyncio.cluster import RedisCluster

from aiolocks import Lock, MultiLock

ACCOUNTS = ("account:1", "account:2")


async def main(redis_url: str = "redis://localhost:7000") -> None:
    async with RedisCluster.from_url(redis_url, decode_responses=True) as redis:
        for account in ACCOUNTS:
            await redis.set(balance_of(account), 100)

        async with MultiLock(redis, ACCOUNTS, ttl=10):  # each name on the node of its own slot
            nodes = {redis.get_node_from_key(f"{{{account}}}") for account in ACCOUNTS}
            print("both accounts locked, on", len(nodes), "nodes")
            await redis.decrby(balance_of(ACCOUNTS[0]), 30)
            await redis.incrby(balance_of(ACCOUNTS[1]), 30)
        print(*[await redis.get(balance_of(account)) for account in ACCOUNTS], sep=" and ")

        async with Lock(redis, ACCOUNTS[0], ttl=10) as lease:
            # A guard needs its keys in the slot of the lock: they have its name in braces.
            written = await lease.guard(("INCRBY", balance_of(ACCOUNTS[0]), 0))
            print("still", *written, end=", written only while the lease is the current one\n")


def balance_of(account: str) -> str:
    return f"{{{account}}}:balance"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
