"""Work on while Sentinels replace the primary: the lease goes on at the new one.

    python examples/sentinel.py

prints (with Sentinels on localhost, port 26379, and a service "mymaster"; or append a URL like the one below)

    working
    the Sentinels name another primary
    still mine, and nobody else gets it
    the next fencing token is larger

It asks the Sentinels to replace the primary, so do not try it where others work.
"""

import asyncio
import sys

from aiolocks import LockManager


async def main(redis_url: str = "redis+sentinel://localhost:26379/mymaster") -> None:
    async with LockManager.from_url(redis_url, ttl=10) as locks:
        lock = locks.lock("example:report")
        async with lock as lease:
            print("working")
            await replace_primary(locks)
            print("the Sentinels name another primary")
            await asyncio.sleep(1)  # work
            lease.check()
            if await lock.try_acquire() is None:
                print("still mine, and nobody else gets it")
        async with lock as later:
            if later.fencing_token > lease.fencing_token:
                print("the next fencing token is larger")


async def replace_primary(locks: LockManager) -> None:
    pool = locks.client.connection_pool
    sentinels, service = pool.sentinel_manager, pool.service_name  # type: ignore[attr-defined]  # as the URL has it
    old = await sentinels.discover_master(service)
    await sentinels.sentinels[0].sentinel_failover(service)
    while await sentinels.discover_master(service) == old:  # noqa: ASYNC110  # other processes decide
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
