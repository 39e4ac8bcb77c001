"""Who holds or awaits a name, as Redis tells it: values only.

The server knows a token, when it came and how long it lasts. A token begins with the id of the session that made it,
and that session's own key says on which host and in which process it is, and what the task is called.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A lease that was held when Redis was asked.

    Attributes:
        host: The holder's host; None if its session has not said, or may not write its own key.
        pid: The holder's process there; None as for *host*.
        holder: What its `LockManager` was told to call it, by ``holder=``; None until the lease is renewed first, after
            a third of its TTL, as leases that last no longer write nothing of themselves.
        task: The name of the asyncio task that took the lease; None as for *holder*.
        since: When the lease was granted, by the server's clock; None if that is not known.
        remaining: Seconds until it ends unless it is renewed, by the server's clock; infinity if it never ends.
        permits: Permits of a semaphore that it holds; else 1.
        mode: "read", "write" or "upgradeable"; on a level of a path, "intent-read" or "intent-write" if only something
            below it is read or written; None where there are no modes.
        fencing_token: That of the lease; 0 if it is not known.
    """

    host: str | None
    pid: int | None
    holder: str | None
    task: str | None
    since: datetime | None
    remaining: float
    permits: int
    mode: str | None
    fencing_token: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A caller that stood in the queue when Redis was asked.

    Attributes:
        host: The waiter's host; None if its session has not said, or may not write its own key.
        pid: The waiter's process there; None as for *host*.
        holder: What its `LockManager` was told to call it, by ``holder=``; None until it has waited for a while.
        task: The name of the asyncio task that waits; None as for *holder*.
        since: When it came, by the server's clock; None if that is not known, as of one that passes the queue.
        waiting: Seconds since then, by the server's clock; 0.0 if that is not known.
        permits: Permits of a semaphore that it waits for; else 1.
        mode: As of a `Holder`.
    """

    host: str | None
    pid: int | None
    holder: str | None
    task: str | None
    since: datetime | None
    waiting: float
    permits: int
    mode: str | None
