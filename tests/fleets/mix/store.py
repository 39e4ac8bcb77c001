"""A resource on a server of its own that nothing befalls: one part checks fencing tokens, one beside it takes all.

What the unchecked part took out of order is what the faults would have cost.
"""

from typing import Any

from redis.asyncio import Redis

from aiolocks.testing import HistoryEvent

_WRITE = """
redis.call('RPUSH', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
local newest = redis.call('LINDEX', KEYS[2], -1)
if newest and tonumber(ARGV[1]) < tonumber(string.match(newest, '^%d+')) then
  return 0
end
redis.call('RPUSH', KEYS[2], ARGV[1] .. ' ' .. ARGV[2])
return 1
"""


async def write(client: Redis, name: str, fence: int, token: str) -> None:
    """Write once to both parts of what *name* guards."""
    run: Any = client.eval
    await run(_WRITE, 2, f"unchecked:{name}", f"accepted:{name}", fence, token)


async def accepted(client: Redis, name: str) -> list[HistoryEvent]:
    """Return the writes that the checking part took, in the order in which it did."""
    return [
        HistoryEvent(position, 0, "accepted", token, int(fence), name)
        for position, (fence, token) in enumerate(await _entries(client, f"accepted:{name}"))
    ]


async def out_of_order(client: Redis, name: str) -> int:
    """Return how many writes the unchecked part took after one with a newer fencing token."""
    newest = late = 0
    for fence, _ in await _entries(client, f"unchecked:{name}"):
        late += int(fence) < newest
        newest = max(newest, int(fence))
    return late


async def _entries(client: Redis, key: str) -> list[list[str]]:
    run: Any = client.lrange
    return [entry.decode().split(" ") for entry in await run(key, 0, -1)]
