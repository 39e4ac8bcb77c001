"""Let a database refuse a late holder: a fencing token beside the data, and one condition in the UPDATE.

    python examples/fencing_sqlite.py

prints (on redis://localhost, or the Redis whose URL you append), and on standard error that ann's lease was lost

    ben has written 90
    ann has written nothing: a later holder was here already
    the balance is 90

Any store that can compare and write in one step will do: the same WHERE in PostgreSQL or MySQL, a conditional put in
DynamoDB or S3. Ann's program was stopped for longer than her lease lasts, and goes on as if nothing had happened; no
lock can prevent that, but the store that gets the write can refuse it.
"""

import asyncio
import sqlite3
import sys
from contextlib import closing

from aiolocks import Lease, LockManager

SCHEMA = "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, fence INTEGER NOT NULL DEFAULT 0)"
WRITE = "UPDATE account SET balance = :balance, fence = :fence WHERE id = :id AND fence <= :fence"


def write(db: sqlite3.Connection, lease: Lease, balance: int) -> bool:
    """Write unless a later holder has written: tokens grow with every grant."""
    with db:
        done = db.execute(WRITE, {"id": 42, "balance": balance, "fence": lease.fencing_token})
    return done.rowcount == 1


async def main(redis_url: str = "redis://localhost") -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(SCHEMA)
        db.execute("INSERT INTO account (id, balance) VALUES (42, 100)")
        async with LockManager.from_url(redis_url, ttl=0.5, on_lost="flag") as locks:
            account = locks.lock("example:account:42", renew=False)  # as for a program that has been stopped
            async with account as ann:
                async with await asyncio.create_task(account.acquire()) as ben:  # granted when hers has lapsed
                    if write(db, ben, 90):
                        print("ben has written 90")
                if not write(db, ann, 50):
                    print("ann has written nothing: a later holder was here already")
        (balance,) = db.execute("SELECT balance FROM account WHERE id = 42").fetchone()
        print("the balance is", balance)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
