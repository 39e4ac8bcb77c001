"""Let an order be paid by one request at a time: a second one gets 423 Locked and a Retry-After.

    python examples/fastapi_orders.py

serves port 8000 (on redis://localhost, or the Redis whose URL you append; then the port). Of two requests at once

    curl -i -X POST http://127.0.0.1:8000/orders/42/pay &
    curl -i -X POST http://127.0.0.1:8000/orders/42/pay

one gets

    HTTP/1.1 200 OK
    {"order":42,"paid":true}

and the other, at once,

    HTTP/1.1 423 Locked
    retry-after: 1
    {"detail":"Locked"}
"""

import asyncio
import sys
from typing import Annotated

import uvicorn
from fastapi import FastAPI

from aiolocks import Lease
from aiolocks.fastapi import lifespan, locked, responses


def orders(redis_url: str) -> FastAPI:
    app = FastAPI(lifespan=lifespan(redis_url, ttl=10))

    @app.post("/orders/{order_id}/pay", responses=responses())  # in the documentation, at /docs
    async def pay(
        order_id: int, lease: Annotated[Lease, locked("orders:{order_id}", retry_after=1)]
    ) -> dict[str, object]:
        await asyncio.sleep(1)  # here the money moves; tell the bank lease.fencing_token
        return {"order": order_id, "paid": True}

    return app


def main(redis_url: str = "redis://localhost", port: str = "8000") -> None:
    uvicorn.run(orders(redis_url), port=int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
