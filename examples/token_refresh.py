"""Refresh an access token once for a whole fleet: all workers that need it wait for one refresh, and share its token.

    python examples/token_refresh.py

prints (on redis://localhost, or the Redis whose URL you append)

    the bank issues token 1
    20 requests were sent with 1
    the bank has revoked token 1
    the bank issues token 2
    20 requests were sent with 2
"""

import asyncio
import sys

from redis.asyncio import Redis

from aiolocks import Once


class Bank:
    """Stands for an API that revokes the last token when it issues the next."""

    def __init__(self) -> None:
        self.issued = 0

    async def issue(self) -> str:
        await asyncio.sleep(0.2)
        self.issued += 1
        print(f"the bank issues token {self.issued}")
        return str(self.issued)


async def worker(redis: Redis, bank: Bank) -> list[str]:
    """Send ten requests at the same time; each process of a fleet does the same."""
    token = Once(redis, "example:token", keep=300, ttl=10)  # keep: less than the token lasts
    return await asyncio.gather(*(token.run(bank.issue, timeout=5) for _ in range(10)))


async def main(url: str = "redis://localhost") -> None:
    bank = Bank()
    async with Redis.from_url(url) as one, Redis.from_url(url) as other:  # stand for two processes
        for revoked in (None, "1"):
            if revoked:
                print(f"the bank has revoked token {revoked}")
            await Once(one, "example:token", keep=300).forget()
            first, second = await asyncio.gather(worker(one, bank), worker(other, bank))
            print(f"{len(first + second)} requests were sent with {' and '.join({*first, *second})}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
