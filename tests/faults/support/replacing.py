"""Primaries behind Sentinels and of a Cluster that are replaced, in each way that this comes about."""

import asyncio
import time
from collections.abc import Iterable
from typing import Literal

from tests.faults.support.traffic import key_of, promoted
from tests.support.clusters import ClusterSet, slot_of
from tests.support.sentinels import SentinelSet
from tests.support.servers import RedisServer

SLOT = slot_of(key_of("orders"))
"""The slot of a Cluster whose primary is replaced."""

Servers = SentinelSet | ClusterSet
Outage = Literal["killed", "stopped", "failed over", "taken over"]


def primary_of(servers: Servers) -> RedisServer:
    return servers.primary_of(SLOT) if isinstance(servers, ClusterSet) else servers.primary()


def replicas_of(servers: Servers) -> list[RedisServer]:
    primaries = servers.primaries() if isinstance(servers, ClusterSet) else [servers.primary()]
    return [server for server in servers.servers if server not in primaries]


def keys_at(servers: Servers, server: RedisServer, names: Iterable[str]) -> list[str]:
    """Return the keys of the locks called *names* that are on *server*, which is a primary."""
    return [key for key in map(key_of, names) if isinstance(servers, SentinelSet) or servers.node_of(key) is server]


def bring_about(servers: Servers, outage: Outage, old: RedisServer) -> RedisServer:
    """Return the primary that takes the place of *old* once the other servers know it."""
    if outage == "killed":
        old.kill()
    elif outage == "stopped":
        old.pause()
    elif isinstance(servers, ClusterSet):
        servers.failover(old, "TAKEOVER" if outage == "taken over" else "")
    else:
        servers.failover()
    if isinstance(servers, ClusterSet):
        return servers.wait_for_primary(SLOT, other_than=old)
    return servers.wait_for_primary(other_than=old)


async def replaced(servers: Servers, outage: Outage) -> tuple[RedisServer, float, float]:
    """Return the new primary, a moment just before it was one, and when the others knew."""
    old, replicas = await asyncio.to_thread(lambda: (primary_of(servers), replicas_of(servers)))
    since, new = await asyncio.gather(
        asyncio.to_thread(promoted, replicas), asyncio.to_thread(bring_about, servers, outage, old)
    )  # fmt: skip
    return new, since, time.monotonic()
