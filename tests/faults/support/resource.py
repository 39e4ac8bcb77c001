"""A resource that fencing tokens protect, and an unprotected one beside it which shows whether the fault bit."""

from typing import Any

from redis.asyncio import Redis

UNCHECKED, ACCEPTED = "test:unchecked", "test:accepted"

_WRITE = """
redis.call('RPUSH', KEYS[1], ARGV[1])
local newest = tonumber(redis.call('LINDEX', KEYS[2], -1) or 0)
if tonumber(ARGV[1]) < newest then
  return 0
end
redis.call('RPUSH', KEYS[2], ARGV[1])
return 1
"""


def write(client: Any, fencing_token: int) -> Any:
    """Write to both; 1 if the protected one took it, 0 if it has seen a newer token. *client* may be of either kind."""
    return client.eval(_WRITE, 2, UNCHECKED, ACCEPTED, fencing_token)


async def check_bitten(client: Redis) -> None:
    """Check that a holder did write late, and that only the resource without protection took that."""
    unchecked, accepted = [await client.lrange(key, 0, -1) for key in (UNCHECKED, ACCEPTED)]
    assert list(map(int, unchecked)) != sorted(map(int, unchecked)), "the fault did not bite"
    assert list(map(int, accepted)) == sorted(map(int, accepted))
