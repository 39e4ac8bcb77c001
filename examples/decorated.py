"""Name the lock by a function's arguments, and let functions that hold it call one another.

    python examples/decorated.py

prints (on redis://localhost, or the Redis whose URL you append)

    order 1: packed
    order 1: sent
    order 1: sent
    order 2: packed
    order 2: sent
"""

import asyncio
import sys

from aiolocks import LockManager, RLock, with_lock

managers: list[LockManager] = []  # there is none yet when the functions are defined


@with_lock(lambda: managers[0], "example:order:{order}", kind=RLock)
async def send(order: int) -> None:
    await asyncio.sleep(0.01)
    print(f"order {order}: sent")


@with_lock(lambda: managers[0], "example:order:{order}", kind=RLock, acquire_timeout=10)
async def pack_and_send(order: int) -> None:
    print(f"order {order}: packed")
    await send(order)  # the same lock, held already


async def main(redis_url: str = "redis://localhost") -> None:
    async with LockManager.from_url(redis_url) as locks:
        managers.append(locks)
        await asyncio.gather(pack_and_send(1), send(order=1))  # one after the other
        await pack_and_send(2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
