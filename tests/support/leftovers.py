"""What a test must not leave behind: tasks of its own, connections to servers and Sentinels, holders and waiters.

Background work may take a second to end, so everything is asked again until it is gone or patience ends.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, final

from .clients import sentinels_of
from .clusters import ClusterSet, nodes
from .servers import RedisServer

_PATIENCE = 1.5
"""Real seconds. The library promises to end its background work within one."""

_POLL = 0.02
_OWN_PREFIX = b"test:"

_GONE = -2
"""PTTL of a key that has expired meanwhile."""


@final
class Leftovers:
    """Made before the test's own clients connect, on an empty database, and asked after they are closed."""

    def __init__(self, server: RedisServer | ClusterSet) -> None:
        self._admins = [node.operator for node in nodes(server)]
        self._sentinels = [sentinel.operator for sentinel in sentinels_of(server)]
        self._known = self._connections().keys()

    def new_connections(self) -> list[str]:
        """Return what the server says about each connection that came during the test and still exists."""
        return [
            f"connection {number}: {line}"
            for (at, number), line in self._connections().items()
            if (at, number) not in self._known
        ]

    def most_connections(self) -> int:
        """Return how many such connections there are to the server that has most of them."""
        return max(Counter(at for at, _ in self._connections().keys() - self._known).values(), default=0)

    def lasting_keys(self) -> list[str]:
        """Return each key that must not stay: holders and queues, and residue that would stay for ever."""
        found = []
        for admin, key in ((each, key) for each in self._admins for key in each.scan_iter(count=1000)):
            if not key.startswith(_OWN_PREFIX):
                ttl_ms = admin.pttl(key)
                if ttl_ms != _GONE and not (is_residue(key) and ttl_ms > 0):
                    kind = "residue without a TTL" if is_residue(key) else "live key"
                    found.append(f"{kind}: {key!r} (PTTL {ttl_ms})")
        return found

    def _connections(self) -> dict[tuple[int, str], str]:
        """Return what is said of each, by its server and number there; a Sentinel may renew its own at any time."""
        return {
            (at, client["id"]): f"{client.get('addr')} name={client.get('name')!r} last command {client.get('cmd')}"
            for at, admin in enumerate([*self._admins, *self._sentinels])
            for own in [str(admin.client_id())]
            for client in admin.client_list()
            if client["id"] != own and not client.get("name", "").startswith("sentinel-")
        }


def empty(server: RedisServer | ClusterSet) -> None:
    for node in nodes(server):
        node.flush()
        node.operator.script_flush()


def is_residue(key: bytes) -> bool:
    """Return whether *key* may stay a while. It holds no lease and no place in a queue."""
    # The first closing brace ends the name, as those inside of names are escaped. A name may end with ":fence".
    if b"{" not in key and b"session:" in key:
        return True
    part = key.partition(b"}")[2] if b"}" in key else key
    ends = (b":fence", b":meta", b":ticket", b":agreed", b":kept", b":newest")
    return part.endswith(ends) or any(each in part for each in (b":t:", b":r:", b":g:")) or b":versioned:" in key


async def wait_until_none(*checks: Callable[[], list[str]]) -> list[str]:
    """Ask all *checks* until none finds anything; return what they found last when patience ends."""
    looks, give_up_at = 0, time.monotonic() + _PATIENCE
    while found := [line for check in checks for line in check()]:
        looks += 1  # the machine may stand still meanwhile
        if time.monotonic() > give_up_at and looks * _POLL > _PATIENCE / 2:
            return found
        await asyncio.sleep(_POLL)
    return []


def tasks_beyond(known: set[asyncio.Task[Any]]) -> list[str]:
    """Return a line for each pending task of the running loop, except *known* ones and the one that asks."""
    others = asyncio.all_tasks() - known - {asyncio.current_task()}
    return [f"pending task: {task!r}" for task in others]
