"""Answer 423 Locked in Litestar, where an order is being paid.

    python examples/litestar_orders.py

serves port 8000 (on redis://localhost, or the Redis whose URL you append; then the port). Of two requests at once

    curl -i -X POST http://127.0.0.1:8000/orders/42/pay &
    curl -i -X POST http://127.0.0.1:8000/orders/42/pay

one gets

    HTTP/1.1 201 Created
    paid 42

and the other, at once,

    HTTP/1.1 423 Locked
    retry-after: 1
    {"status_code":423,"detail":"order 42 is being paid"}
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from litestar import Litestar, MediaType, post
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from aiolocks import LockManager


@post("/orders/{order_id:int}/pay", media_type=MediaType.TEXT)
async def pay(order_id: int, state: State) -> str:
    if not (lease := await state.locks.lock(f"orders:{order_id}").try_acquire()):
        raise HTTPException(f"order {order_id} is being paid", status_code=423, headers={"Retry-After": "1"})
    async with lease:
        await asyncio.sleep(1)  # here the money moves
    return f"paid {order_id}"  # after the block: a loss is no success


def orders(redis_url: str) -> Litestar:
    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        async with LockManager.from_url(redis_url, ttl=10) as app.state.locks:
            yield

    return Litestar([pay], lifespan=[lifespan])


def main(redis_url: str = "redis://localhost", port: str = "8000") -> None:
    uvicorn.run(orders(redis_url), port=int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
