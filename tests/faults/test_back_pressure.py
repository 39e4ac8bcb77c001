"""A server that does not read: what can wait is held back, instead of filling a buffer without bounds."""

import asyncio

from redis.asyncio import Redis

from aiolocks import Lock
from tests.support.inside import link_of
from tests.support.servers import RedisServer

TASKS = 8000
"""More than the buffers of a unix socket take, at some 400 bytes each."""


async def test_requests_are_held_back_until_the_server_reads_and_all_go_out_in_order(server: RedisServer) -> None:
    granted: list[int] = []

    async def work(number: int) -> None:
        async with Lock(redis, "crowd", ttl=30):
            granted.append(number)

    async with Redis(unix_socket_path=server.socket_path) as redis, Lock(redis, "first", ttl=30):
        assert link_of(redis).connected
        server.pause()
        try:
            tasks = [asyncio.create_task(work(number)) for number in range(TASKS)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            link = link_of(redis)
            assert link.full
            assert link.held_back + link.written >= TASKS
            assert link.buffered <= 256 * 1024
        finally:
            server.resume()
        await asyncio.gather(*tasks)
    assert granted == list(range(TASKS))
