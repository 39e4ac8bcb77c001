"""Lock on three independent servers, one of which is gone; when two are gone, an error says so.

    python examples/quorum.py

prints (with redis://localhost, or the Redis whose URL you append, as one of the three)

    held, though one of three servers is gone
    and nobody else gets it meanwhile
    two of them gone: 1 answered
"""

import asyncio
import sys

from aiolocks import LockManager, QuorumError, Redlock

IN_MEMORY = "memory://example"  # in production: a server like the first, independent of it
GONE = ("redis://localhost:1", "redis://localhost:2")  # nothing listens there


async def main(redis_url: str = "redis://localhost") -> None:
    urls = (redis_url, IN_MEMORY, *GONE)
    one, two, gone, gone_too = (LockManager.from_url(url).client for url in urls)
    async with Redlock([one, two, gone], "example:report", ttl=10):
        print("held, though one of three servers is gone")
        other = Redlock([one, two, gone], "example:report", ttl=10)
        if await other.try_acquire() is None:
            print("and nobody else gets it meanwhile")
    try:
        await Redlock([one, gone, gone_too], "example:report", ttl=10).acquire(timeout=5)
    except QuorumError as error:
        print("two of them gone:", list(error.outcomes.values()).count("answered"), "answered")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
