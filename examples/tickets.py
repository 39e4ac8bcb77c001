"""Sell what there is and no more, without a lock: read with a version, write if it is unchanged, or compute again.

    python examples/tickets.py

prints (on redis://localhost, or the Redis whose URL you append)

    10 have a ticket, 5 were told that it is sold out, and 0 tickets are left
"""

import asyncio
import sys

from aiolocks import LockManager, Versioned


class SoldOutError(Exception):
    pass


def one_less(left: bytes | None) -> int:
    if int(left or 0) == 0:
        raise SoldOutError
    return int(left or 0) - 1


async def buy(tickets: Versioned) -> bool:
    try:
        await tickets.update(one_less)
    except SoldOutError:
        return False
    return True


async def main(redis_url: str = "redis://localhost") -> None:
    async with LockManager.from_url(redis_url) as locks:
        tickets = locks.versioned("example:tickets", expire=60)
        await tickets.update(lambda _: 10)
        bought = await asyncio.gather(*(buy(tickets) for _ in range(15)))
        left, _ = await tickets.read()
        print(
            f"{bought.count(True)} have a ticket, {bought.count(False)} were told that it is sold out, "
            f"and {int(left or 0)} tickets are left"
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
