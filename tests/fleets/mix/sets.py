"""The mix behind Sentinels and on a Cluster: primaries are killed, stopped and replaced, and slots move.

What befalls a set blocks for seconds, in a thread, and is over only when the set is whole again.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from typing import Any, final

from tests.support.clusters import ClusterSet, slot_of
from tests.support.sentinels import SentinelSet
from tests.support.servers import RedisServer

from .faults import Crew, Loss, befall, words_of
from .plan import KINDS, NAMES, WORKERS, Plan, Strike


class SetFaults(ABC):
    """Strikes, one after the other at the set and any number at once at the workers."""

    def __init__(self, plan: Plan, servers: SentinelSet | ClusterSet) -> None:
        self._plan = plan
        self.servers = servers.servers
        self.url = servers.url
        """What workers are given."""
        self.urls = [self.url] * WORKERS
        self.stop = servers.stop
        self._one_at_a_time = asyncio.Lock()
        self.losses: list[Loss] = []

    @abstractmethod
    def primaries(self) -> list[RedisServer]:
        """Return the servers that have keys."""

    @abstractmethod
    def mend(self) -> None:
        """Return when every server runs and has its place. Blocks."""

    async def strike(self, strike: Strike, crew: Crew) -> None:
        """Do it and undo it; when cancelled, what has begun at the set is brought to its end."""
        if await befall(crew, strike):
            return
        async with self._one_at_a_time:
            act = asyncio.create_task(asyncio.to_thread(self._act, strike))
            try:
                await asyncio.shield(act)
            finally:
                await asyncio.wait([act])
                act.result()

    async def heal(self) -> None:
        """Return when every server runs and has its place."""
        await asyncio.to_thread(self.mend)

    def _act(self, strike: Strike) -> None:
        if KINDS[strike.kind].whom == "server":
            for server in self.servers:
                _operator(server).execute_command(*words_of(strike))
            return
        getattr(self, strike.kind.replace(" ", "_"))(strike)

    @abstractmethod
    def _target(self, strike: Strike) -> tuple[RedisServer, frozenset[str]]:
        """Return the primary that is to be replaced, when it can be, and the names that are on it."""

    @abstractmethod
    def _wait_for_successor(self, old: RedisServer) -> None: ...

    def primary_killed(self, strike: Strike) -> None:
        old, names = self._target(strike)
        since = time.monotonic_ns()
        old.kill()
        if not self._plan.replicas:
            self._lost(since, names)
        self._wait_for_successor(old)
        old.restart()
        self.mend()

    def primary_stopped(self, strike: Strike) -> None:
        """Until another is the primary. What was sent to the old one meanwhile, it still does."""
        old, names = self._target(strike)
        since = time.monotonic_ns()
        old.pause()
        try:
            self._wait_for_successor(old)
        finally:
            old.resume()
        self.mend()
        if not self._plan.replicas:
            self._lost(since, names)

    @abstractmethod
    def failover(self, strike: Strike) -> None: ...

    def _lost(self, since_ns: int, names: frozenset[str]) -> None:
        """Note that what was granted until now may be lost: fencing tokens are not behind the clock in µs."""
        self.losses.append(Loss(since_ns, round(time.time() * 1e6), names))


@final
class OnSentinels(SetFaults):
    """A primary and two replicas, which three Sentinels watch."""

    def __init__(self, plan: Plan) -> None:
        self._set = SentinelSet()
        super().__init__(plan, self._set)

    def primaries(self) -> list[RedisServer]:
        return [self._set.primary()]

    def mend(self) -> None:
        self._set.wait_until_whole()

    def _target(self, strike: Strike) -> tuple[RedisServer, frozenset[str]]:
        return self._set.primary(), frozenset(NAMES)

    def _wait_for_successor(self, old: RedisServer) -> None:
        self._set.wait_for_primary(other_than=old)

    def failover(self, strike: Strike) -> None:
        """The old primary takes writes until it is a replica, and its other replica has them first: even those that
        one replica has may be lost.
        """
        since = time.monotonic_ns()
        self._set.failover()
        self.mend()
        self._lost(since, frozenset(NAMES))


@final
class OnCluster(SetFaults):
    """Three primaries with a replica each."""

    def __init__(self, plan: Plan) -> None:
        self._set = ClusterSet()
        super().__init__(plan, self._set)

    def primaries(self) -> list[RedisServer]:
        return self._set.primaries()

    def mend(self) -> None:
        self._set.wait_until_ok()

    def _target(self, strike: Strike) -> tuple[RedisServer, frozenset[str]]:
        primary = self._set.primary_of(_slot(strike))
        self._set.wait_until_electable(self._set.replica_of(primary))
        names = (name for name in NAMES if self._set.primary_of(slot_of(_key(name))) is primary)
        return primary, frozenset(names)

    def _wait_for_successor(self, old: RedisServer) -> None:
        slot = next(slot for slot in map(slot_of, map(_key, NAMES)) if self._set.primary_of(slot) is old)
        self._set.wait_for_primary(slot, other_than=old)

    def failover(self, strike: Strike) -> None:
        """Nothing is lost: the primary takes no writes until its replica has them all."""
        self._set.failover(self._set.primary_of(_slot(strike)))
        self.mend()

    def slot_moved(self, strike: Strike) -> None:
        self._set.move_slot(_slot(strike), self._another(strike))
        self.mend()

    def slot_held_open(self, strike: Strike) -> None:
        self._set.begin_move(_slot(strike), self._another(strike))
        time.sleep(strike.seconds / 2)
        if keys := self._set.keys_to_move(_slot(strike))[::2]:
            self._set.migrate(keys)
        time.sleep(strike.seconds / 2)
        self._set.end_move(_slot(strike))
        self.mend()

    def _another(self, strike: Strike) -> RedisServer:
        old = self._set.primary_of(_slot(strike))
        others = [server for server in self._set.primaries() if server is not old]
        return others[strike.reset]


def set_for(plan: Plan) -> SetFaults:
    """Start what *plan* is for. Blocks."""
    return OnSentinels(plan) if plan.on == "sentinel" else OnCluster(plan)


def connections_of(servers: list[RedisServer]) -> list[str]:
    """Return those of clients: a server's to another, a Sentinel's and the operator's do not count.

    A node that has given keys to another keeps its connection there for ten seconds.
    """
    return [
        f"{client['addr']} {client['cmd']} at {server.port}"
        for server in servers
        for own in [str(_operator(server).client_id())]
        for client in _operator(server).client_list()
        if client["id"] != own and not set(client["flags"]) & set("MS")
        if not client["name"].startswith("sentinel-") and client["cmd"] != "restore-asking"
    ]


def _key(name: str) -> str:
    return f"aiolocks:any:{{{name.partition('/')[0]}}}"  # a slot is of what stands in braces


def _slot(strike: Strike) -> int:
    return slot_of(_key(NAMES[strike.worker % len(NAMES)]))


def _operator(server: RedisServer) -> Any:
    return server.operator
