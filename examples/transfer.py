"""Move money between accounts, each move with both accounts locked, in any order: no deadlock, no cent lost.

    python examples/transfer.py

prints (on redis://localhost, or the Redis whose URL you append)

    ann has 100, bob has 100, cid has 100
"""

import asyncio
import itertools
import sys

from redis.asyncio import Redis

from aiolocks import MultiLock

ACCOUNTS = ("ann", "bob", "cid")


async def balance(redis: Redis, account: str) -> int:
    return int(await redis.get(f"example:account:{account}") or 0)


async def transfer(redis: Redis, source: str, target: str, amount: int) -> None:
    async with MultiLock(redis, [f"example:{source}", f"example:{target}"], ttl=10) as lease:
        left, grown = await balance(redis, source) - amount, await balance(redis, target) + amount
        lease.check()
        await redis.mset({f"example:account:{source}": left, f"example:account:{target}": grown})


async def main(redis_url: str = "redis://localhost") -> None:
    async with Redis.from_url(redis_url) as redis:
        await redis.mset({f"example:account:{account}": 100 for account in ACCOUNTS})
        pairs = list(itertools.permutations(ACCOUNTS, 2)) * 10  # from each account to each other, all at once
        await asyncio.gather(*(transfer(redis, source, target, 7) for source, target in pairs))
        print(", ".join([f"{account} has {await balance(redis, account)}" for account in ACCOUNTS]))
        await redis.delete(*(f"example:account:{account}" for account in ACCOUNTS))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
