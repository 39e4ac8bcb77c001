"""`min_uptime`: a server that has restarted a short time ago grants nothing, as it may have lost leases (W22)."""

from typing import final

from redis.asyncio.cluster import NodesManager
from redis.exceptions import RedisError

from .._core.options import Options
from .._engine.extension import Extension
from .._redis.clients import Pool, behind_sentinels, in_memory


@final
class MinUptime(Extension):
    """Asks each server for its uptime, in whole seconds; see `Options.needed_uptime`."""

    for_parts = True
    answered_briefly = False

    def __init__(self, needed_s: int) -> None:
        self._needed_s = needed_s

    def arguments(self, *, again: bool = False) -> tuple[int]:
        return (self._needed_s,)

    def queue_word(self) -> bytes:
        return b" %d" % self._needed_s

    def other_obstacle(self) -> str:
        return ", or its server restarted too short a time ago"


def min_uptime_of(options: Options, *pools: Pool) -> tuple[MinUptime, ...]:
    """Return the extension that *options* ask for, if any. Raise ValueError if an uptime is not the age of the data."""
    if not options.needed_uptime:
        return ()
    for pool in pools:
        if behind_sentinels(pool) or isinstance(pool, NodesManager):
            raise ValueError("min_uptime is for a single server: with Sentinel or a Cluster, a replica can take over")
        if in_memory(pool):
            raise ValueError("min_uptime is for a server: memory:// begins and ends with its process")
    return (MinUptime(options.needed_uptime),)


def too_young(seconds: float) -> RedisError:
    """Return the error of a server that has no vote yet, as if it could not be reached."""
    return RedisError(f"restarted too short a time ago, and has no vote for another {seconds:g} s")
