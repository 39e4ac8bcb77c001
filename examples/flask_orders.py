"""Answer 423 Locked in Flask, where an order is being paid.

    python examples/flask_orders.py

serves port 8000 (on redis://localhost, or the Redis whose URL you append; then the port). Of two requests at once

    curl -i -X POST http://127.0.0.1:8000/orders/42/pay &
    curl -i -X POST http://127.0.0.1:8000/orders/42/pay

one gets

    HTTP/1.1 200 OK
    paid 42

and the other, at once,

    HTTP/1.1 423 LOCKED
    Retry-After: 1
    order 42 is being paid

The manager can be made at import time: gunicorn's workers begin an event loop of their own after they are forked.
"""

import sys
import time

from flask import Flask
from flask.typing import ResponseReturnValue

from aiolocks.sync import LockManager


def orders(locks: LockManager) -> Flask:
    app = Flask(__name__)

    @app.post("/orders/<int:order>/pay")
    def pay(order: int) -> ResponseReturnValue:
        if not (lease := locks.lock(f"orders:{order}").try_acquire()):
            return f"order {order} is being paid", 423, {"Retry-After": "1"}
        with lease:
            time.sleep(1)  # the work before
            lease.check()  # here the money moves: not after a loss, which cannot stop a thread
        return f"paid {order}"

    return app


def main(redis_url: str = "redis://localhost", port: str = "8000") -> None:
    orders(LockManager.from_url(redis_url, ttl=10)).run(port=int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
