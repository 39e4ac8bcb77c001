"""Clerks change single orders at the same time; an accountant who asks in between has all orders alone.

    python examples/orders_table.py

prints (on redis://localhost, or the Redis whose URL you append)

    2 clerks at once, each at an order
    the accountant reads all orders, and nobody changes one
    the late clerk changes an order after the accountant
"""

import asyncio
import sys

from aiolocks import LockManager


async def main(url: str = "redis://localhost") -> None:
    async with LockManager.from_url(url) as locks:
        orders = locks.hierarchical("example/orders")
        both_inside = asyncio.Barrier(3)
        at_work = 0

        async def waits(waiters: int) -> None:
            while (await orders.read.statistics()).waiting < waiters:  # noqa: ASYNC110  # what happens on the server
                await asyncio.sleep(0.01)

        async def clerk(order: int) -> None:
            nonlocal at_work
            async with locks.hierarchical(f"example/orders/{order}").write:
                at_work += 1
                await both_inside.wait()
                if order == 1:
                    print(f"{at_work} clerks at once, each at an order")
                await waits(2)  # for the accountant and the late clerk to ask
                at_work -= 1

        async def accountant() -> None:
            await both_inside.wait()
            async with orders.read:
                print(f"the accountant reads all orders, and {at_work or 'nobody'} changes one")

        async def late_clerk() -> None:
            await waits(1)
            async with locks.hierarchical("example/orders/3").write:  # this order is free, but it does not overtake
                print("the late clerk changes an order after the accountant")

        await asyncio.gather(clerk(1), clerk(2), accountant(), late_clerk())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
