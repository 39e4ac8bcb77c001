"""`max_waiting`: a caller that would wait behind so many others is refused at once, and not queued (W26).

The bound is for newcomers. A caller that was granted the name, or stood in line, is never refused, even if it must ask
again: under a fresh token after a revocation, after a restart of the server, or after a lost grant. Of a lease on
several names, this holds for each queue in which it stood. An upgrade passes the queue, as does a level of a path that
the task's own blocks hold, and so neither is refused.
"""

from typing import final

from .._core.kinds import KINDS
from .._core.options import Options, check_max_waiting
from .._engine.extension import Extension
from .._engine.request import Request

_WITHOUT_QUEUE = {kind.name: kind.class_name for kind in KINDS if kind.leased and not kind.queued}


@final
class MaxWaiting(Extension):
    """Sends the bound in place of the ticket that a newcomer does not have yet."""

    for_parts = True

    def __init__(self, most: int) -> None:
        self.newcomer = b"<%d" % most

    def held(self) -> None:
        return None


def max_waiting_of(options: Options) -> tuple[MaxWaiting, ...]:
    """Return the extension that *options* ask for, if any."""
    return () if options.max_waiting is None else (MaxWaiting(options.max_waiting),)


def check_call(kind: str, max_waiting: int | None) -> None:
    """Raise TypeError or ValueError unless a call of this *kind* can have this `max_waiting`."""
    if kind in _WITHOUT_QUEUE:
        raise TypeError(f"{_WITHOUT_QUEUE[kind]} has no 'max_waiting': its callers wait in no queue")
    check_max_waiting(max_waiting)


def bound(request: Request, max_waiting: int | None) -> None:
    """Give *request* the bound of one call, in place of the option's. None is no bound."""
    others = tuple(each for each in request.extensions if not isinstance(each, MaxWaiting))
    request.carry(others if max_waiting is None else (*others, MaxWaiting(max_waiting)))
