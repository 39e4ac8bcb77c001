"""Answer 423 Locked in Starlette, where an order is being paid.

    python examples/starlette_orders.py

serves port 8000 (on redis://localhost, or the Redis whose URL you append; then the port). Of two requests at once

    curl -i -X POST http://127.0.0.1:8000/orders/42/pay &
    curl -i -X POST http://127.0.0.1:8000/orders/42/pay

one gets

    HTTP/1.1 200 OK
    paid 42

and the other, at once,

    HTTP/1.1 423 Locked
    retry-after: 1
    order 42 is being paid
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from aiolocks import LockManager


async def pay(request: Request) -> Response:
    order = int(request.path_params["order_id"])
    if not (lease := await request.app.state.locks.lock(f"orders:{order}").try_acquire()):
        return PlainTextResponse(f"order {order} is being paid", 423, {"Retry-After": "1"})
    async with lease:
        await asyncio.sleep(1)  # here the money moves
    return PlainTextResponse(f"paid {order}")  # after the block: a loss is no success


def orders(redis_url: str) -> Starlette:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with LockManager.from_url(redis_url, ttl=10) as app.state.locks:
            yield

    return Starlette(routes=[Route("/orders/{order_id:int}/pay", pay, methods=["POST"])], lifespan=lifespan)


def main(redis_url: str = "redis://localhost", port: str = "8000") -> None:
    uvicorn.run(orders(redis_url), port=int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
