"""Check a cart out one request at a time: a second one waits three seconds for the first, then gets 409 Conflict.

    python examples/aiohttp_checkout.py

serves port 8080 (on redis://localhost, or the Redis whose URL you append; then the port). Of three requests at once

    curl -i -X POST http://127.0.0.1:8080/carts/42/checkout &
    curl -i -X POST http://127.0.0.1:8080/carts/42/checkout &
    curl -i -X POST http://127.0.0.1:8080/carts/42/checkout

two get, one after the other,

    HTTP/1.1 200 OK
    cart 42 is checked out

and the last

    HTTP/1.1 409 Conflict
    Retry-After: 2
    this cart is being checked out
"""

import asyncio
import sys

from aiohttp import web

from aiolocks import Lease
from aiolocks.aiohttp import cleanup_ctx, locked

routes = web.RouteTableDef()


@routes.post("/carts/{cart_id:[1-9][0-9]*}/checkout")
@locked("carts:{cart_id}", timeout=3, status=409, retry_after=2, detail="this cart is being checked out\n")
async def checkout(request: web.Request, lease: Lease) -> web.Response:
    await asyncio.sleep(2)  # here the goods are reserved; tell the warehouse lease.fencing_token
    return web.Response(text=f"cart {request.match_info['cart_id']} is checked out\n")


def shop(redis_url: str) -> web.Application:
    app = web.Application()
    app.cleanup_ctx.append(cleanup_ctx(redis_url, ttl=10))
    app.add_routes(routes)
    return app


def main(redis_url: str = "redis://localhost", port: str = "8080") -> None:
    web.run_app(shop(redis_url), host="127.0.0.1", port=int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
