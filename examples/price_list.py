"""Shops read a price list together; a buyer reads along, and has it to itself only where it changes a price.

    python examples/price_list.py

prints (on redis://localhost, or the Redis whose URL you append)

    3 shops and the buyer read at once
    the buyer changes the price, and nobody reads
    3 shops read 12
"""

import asyncio
import sys

from redis.asyncio import Redis

from aiolocks import RWLock


async def read(redis: Redis, prices: RWLock, everybody: asyncio.Barrier) -> str:
    async with prices.read:
        price = int(await redis.get("example:price") or 0)
        await everybody.wait()  # none of them leaves before all are inside
        return str(price)


async def buy(redis: Redis, prices: RWLock, everybody: asyncio.Barrier) -> None:
    async with prices.upgradeable as lease:
        price = int(await redis.get("example:price") or 0)
        await everybody.wait()
        print(f"{everybody.parties - 1} shops and the buyer read at once")
        if price != 12:
            async with lease.upgrade(timeout=10):  # waits for the shops, and lets no new ones in
                nobody = await prices.read.locked()
                print(f"the buyer changes the price, and {'nobody reads' if nobody else 'others read'}")
                await redis.set("example:price", 12, ex=60)


async def main(url: str = "redis://localhost") -> None:
    async with Redis.from_url(url) as redis:
        prices = RWLock(redis, "example:prices")
        await redis.set("example:price", 10, ex=60)
        everybody = asyncio.Barrier(4)
        await asyncio.gather(buy(redis, prices, everybody), *(read(redis, prices, everybody) for _ in range(3)))
        seen = await asyncio.gather(*(read(redis, prices, asyncio.Barrier(1)) for _ in range(3)))
        print(f"{len(seen)} shops read {' and '.join(set(seen))}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
