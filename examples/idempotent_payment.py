"""Pay once for each idempotency key: a request that is repeated gets the first answer, and another request an error.

    python examples/idempotent_payment.py

serves port 8000 (on redis://localhost, or the Redis whose URL you append; then the port). Two of these at once, or one
after the other,

    curl -X POST "http://127.0.0.1:8000/pay?order=42&cents=1000" -H "Idempotency-Key: a1"
    curl -X POST "http://127.0.0.1:8000/pay?order=42&cents=1000" -H "Idempotency-Key: a1"
    curl -X POST "http://127.0.0.1:8000/pay?order=42&cents=9999" -H "Idempotency-Key: a1"

are answered by

    {"order":42,"cents":1000,"payment":1}
    {"order":42,"cents":1000,"payment":1}
    {"detail":"this Idempotency-Key was used for another request"}
"""

import asyncio
import itertools
import sys
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Header, HTTPException

from aiolocks import AcquireTimeoutError, LockManager, OutcomeMismatchError

payments = itertools.count(1)


def payment_site(locks: LockManager) -> FastAPI:
    app = FastAPI()

    @app.post("/pay")
    async def pay(order: int, cents: int, idempotency_key: Annotated[str, Header()]) -> dict[str, int]:
        async def transfer() -> dict[str, int]:
            await asyncio.sleep(0.2)  # here the money moves; send the key along, as this runs at least once
            return {"order": order, "cents": cents, "payment": next(payments)}

        once = locks.once(f"example:payment:{idempotency_key}", keep=24 * 3600)
        try:
            return await once.run(transfer, timeout=5, fingerprint=f"{order} {cents}")
        except OutcomeMismatchError:
            raise HTTPException(422, "this Idempotency-Key was used for another request") from None
        except AcquireTimeoutError:
            raise HTTPException(409, "the first request with this Idempotency-Key is still running") from None

    return app


def main(redis_url: str = "redis://localhost", port: str = "8000") -> None:
    uvicorn.run(payment_site(LockManager.from_url(redis_url)), port=int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
