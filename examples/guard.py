"""Write to Redis only while you hold the lock, however late the write arrives: the server itself checks.

    python examples/guard.py

prints (on redis://localhost, or the Redis whose URL you append), and on standard error that ann's lease was lost

    ann has moved 10, which leaves [90, 10]
    ben has moved 20, which leaves [70, 30]
    ann's next move was refused, and nothing was written
    the accounts have 70 and 30
"""

import asyncio
import sys

from aiolocks import Lease, LeaseLostError, LockManager

FROM, TO = "example:account:1", "example:account:2"


async def move(lease: Lease, amount: int) -> str:
    answers = await lease.guard(("DECRBY", FROM, amount), ("INCRBY", TO, amount))
    return f"has moved {amount}, which leaves {answers}"


async def main(redis_url: str = "redis://localhost") -> None:
    async with LockManager.from_url(redis_url, ttl=5) as locks:
        await locks.client.mset({FROM: 100, TO: 0})
        accounts = locks.lock("example:accounts", on_lost="flag", renew=False)
        async with accounts as ann:
            print("ann", await move(ann, 10))
            await locks.client.delete("aiolocks:lock:{example:accounts}")  # as a restart of the server might do
            async with await asyncio.create_task(accounts.acquire()) as ben:
                print("ben", await move(ben, 20))
                assert ann.held  # by all that she can know
                try:
                    await move(ann, 50)
                except LeaseLostError:
                    print("ann's next move was refused, and nothing was written")
        here, there = await locks.client.mget(FROM, TO)
        print("the accounts have", int(here or 0), "and", int(there or 0))
        await locks.client.delete(FROM, TO)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
