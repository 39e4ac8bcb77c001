"""`min_uptime`: a server that has restarted a short time ago grants nothing, as it may have lost leases (W22)."""

from typing import final

from redis.exceptions import RedisError

from .._core.options import Options
from .._engine.extension import Extension


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


def min_uptime_of(options: Options) -> tuple[MinUptime, ...]:
    """Return the extension that *options* ask for, if any."""
    return (MinUptime(options.needed_uptime),) if options.needed_uptime else ()


def too_young(seconds: float) -> RedisError:
    """Return the error of a server that is too young: it has no vote, as if it were away."""
    return RedisError(f"restarted too short a time ago, and has no vote for another {seconds:g} s")
