"""Compute a page once for 500 requests that miss the cache at the same moment; later requests are served from Redis.

    python examples/cache_stampede.py

prints (on redis://localhost, or the Redis whose URL you append)

    computing the page of monday
    500 requests got <h1>monday</h1>
    a later one got <h1>monday</h1>
    computed 1 time
"""

import asyncio
import sys

import aiolocks
from aiolocks import LockManager


async def main(url: str = "redis://localhost") -> None:
    async with LockManager.from_url(url, acquire_timeout=10) as locks:
        computed = 0

        @aiolocks.once(locks, "example:page:{day}", keep=60)  # one run in the fleet, whose result is kept for a minute
        async def page(day: str) -> str:
            nonlocal computed
            computed += 1
            print(f"computing the page of {day}")
            await asyncio.sleep(0.5)  # here is the work
            return f"<h1>{day}</h1>"

        await locks.once("example:page:monday", keep=60).forget()  # as if the cache were cold
        pages = await asyncio.gather(*(page("monday") for _ in range(500)))
        print(f"{len(pages)} requests got {' and '.join(set(pages))}")
        print(f"a later one got {await page('monday')}")
        print(f"computed {computed} time{'' if computed == 1 else 's'}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
