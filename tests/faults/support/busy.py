"""Somebody else's script that runs for long: meanwhile Redis answers everything but a few commands with BUSY."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from tests.support.servers import RedisServer

BUSY_AT_ONCE: Mapping[str, str] = {"lua-time-limit": "5"}
"""Options of a server that says so after 5 ms of a script; it keeps silent for 5 s if left alone."""

_SCRIPT = """
local function now()
  local time = redis.call('TIME')
  return time[1] + time[2] / 1000000
end
local ends = now() + tonumber(ARGV[1])
if ARGV[2] == '1' then
  redis.call('SET', KEYS[1], 'x', 'PX', 10000) -- from here on it cannot be killed
end
repeat until now() > ends
return 1
"""


@asynccontextmanager
async def busy(server: RedisServer, seconds: float, *, writes: bool = False) -> AsyncIterator[None]:
    """Keep *server* at a script for *seconds*; the body begins when it answers BUSY, and the script ends with it."""
    async with Redis.from_url(server.url, socket_timeout=30) as somebody, Redis.from_url(server.url) as other:
        arguments: Any = ("test:busy", seconds, int(writes))

        def begin() -> asyncio.Task[Any]:
            return asyncio.create_task(somebody.execute_command("EVAL", _SCRIPT, 1, *arguments))  # type: ignore[no-untyped-call]

        running = begin()
        try:
            while not await answers_busy(other):
                if running.done():  # over before it was noticed, on a machine that was busy itself
                    await running
                    running = begin()
            yield
        finally:
            await running


async def answers_busy(client: Redis) -> bool:
    """Ask whether a script runs now."""
    try:
        await client.get("test:any")
    except ResponseError as error:
        return str(error).startswith("BUSY ")
    return False
