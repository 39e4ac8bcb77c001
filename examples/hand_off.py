"""Take a lock in a web handler and let a worker go on with it: no other process gets it in between.

    python examples/hand_off.py

prints (on redis://localhost, or the Redis whose URL you append)

    the handler has taken order 42, and answers "accepted"
    a second click is told that the order is taken
    the worker goes on with a larger fencing token
    who reads the same job again comes too late
    order 42 is free again
"""

import asyncio
import sys

from aiolocks import LeaseLostError, LockManager

ORDER, JOBS = "example:order:42", "example:jobs"


async def handler(redis_url: str) -> int | None:
    async with LockManager.from_url(redis_url) as locks:
        lease = await locks.lock(ORDER).try_acquire()
        if lease is None:
            return None
        text = await lease.hand_off(ttl=60)  # the worker must have begun by then
        await locks.client.lpush(JOBS, text, text)  # a queue may deliver a job twice
        return lease.fencing_token


async def worker(redis_url: str, earlier: int) -> None:
    async with LockManager.from_url(redis_url) as locks:
        text, again = await locks.client.lrange(JOBS, 0, 1)  # its reader owns the lease: keep it out of logs
        await locks.client.delete(JOBS)
        async with await locks.lock(ORDER).adopt(text) as lease:
            assert lease.fencing_token > earlier
            print("the worker goes on with a larger fencing token")
            try:
                await locks.lock(ORDER).adopt(again)
            except LeaseLostError:
                print("who reads the same job again comes too late")
        if not await locks.lock(ORDER).locked():
            print("order 42 is free again")


async def main(redis_url: str = "redis://localhost") -> None:
    fencing_token = await handler(redis_url)
    assert fencing_token is not None
    print('the handler has taken order 42, and answers "accepted"')
    if await handler(redis_url) is None:
        print("a second click is told that the order is taken")
    await worker(redis_url, fencing_token)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
