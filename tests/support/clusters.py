"""A Redis Cluster of real processes, made by Redis's own commands, whose slots can be moved one step at a time.

What waits here blocks, for seconds: a test whose event loop must go on meanwhile calls it by `asyncio.to_thread`.
"""

import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, final

from redis import ResponseError
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from tests.support.sentinels import QUICK_REPLICATION, role_of
from tests.support.servers import RedisServer, ServerError, reserved_port, wait_while

_OK_WITHIN = 30.0
_PROMOTED_WITHIN = 6.0
"""Redis gives a failover that it was told to do 5 s; a request whose time is over has to be made again."""

_PROMOTION_ATTEMPTS = 5
_KEYS_AT_ONCE = 100

_BUS = 10_000
"""How far above its port a node talks to the others."""


@final
class ClusterSet(AbstractContextManager["ClusterSet"]):
    """Run a Redis Cluster: *primaries* that share the slots evenly, and *replicas*, one after the other for each.

    Redis needs three primaries to replace one that is dead. *node_timeout*: seconds until a node is suspected to be.
    *replica_environment*: variables that only the first replicas get.
    """

    def __init__(
        self, *, primaries: int = 3, replicas: int = 3, node_timeout: float = 2.0,
        options: Mapping[str, str] | None = None, replica_environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.servers: list[RedisServer] = []
        """All nodes that were not removed, running or not."""
        self._ids: dict[RedisServer, str] = {}
        self._reserved: dict[RedisServer, tuple[socket.socket, socket.socket]] = {}
        self._moves: dict[int, tuple[RedisServer, RedisServer]] = {}
        """From where to where each slot is being moved."""
        self._elected: dict[RedisServer, float] = {}
        """When each was last seen to be a primary that was elected."""
        self._votes_last = max(4 * node_timeout, 4.0)
        self._options = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": f"{node_timeout * 1000:.0f}",
            "cluster-migration-barrier": "100",  # replicas stay with their primary, as tests count on it
            **QUICK_REPLICATION,
            **(options or {}),
        }
        try:
            nodes = [self._start() for _ in range(primaries)]
            nodes += [self._start(replica_environment) for _ in range(replicas)]
            for number, node in enumerate(nodes):
                _ask(node, "SET-CONFIG-EPOCH", number + 1)
                if number < primaries:
                    first, end = (REDIS_CLUSTER_HASH_SLOTS * part // primaries for part in (number, number + 1))
                    _ask(node, "ADDSLOTS", *range(first, end))
            for number, node in enumerate(nodes):
                self._introduce(node, nodes[number + 1 :])
            for number, node in enumerate(nodes[primaries:]):
                name = self._ids[nodes[number % primaries]]
                wait_while(partial(_ignorance, node, name), _OK_WITHIN)
                _ask(node, "REPLICATE", name)
            self.wait_until_ok()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    tcp_url = url
    """The same: there is no other way in."""

    def client(self, **options: Any) -> RedisCluster:
        nodes = [ClusterNode("127.0.0.1", server.port) for server in self.servers if server.answering]
        client: RedisCluster = RedisCluster(startup_nodes=nodes, **options)
        return client

    def flush(self) -> None:
        for server in self.primaries():
            server.flush()

    def primaries(self) -> list[RedisServer]:
        return [server for server in self._answering() if self._is_primary(server)]

    def node_of(self, key: str | bytes) -> RedisServer:
        return self.primary_of(slot_of(key))

    def primary_of(self, slot: int) -> RedisServer:
        """Return the primary of *slot*, by the latest that a node knows; it may be down."""
        claims = {
            (int(node["epoch"]), name)
            for server in self._answering()
            for name, node in _view(server).items()
            if _has(node, slot)
        }
        if not claims:
            raise ServerError(f"slot {slot} is nobody's")
        _, latest = max(claims)
        return next(server for server, name in self._ids.items() if name == latest)

    def wait_for_primary(self, slot: int, *, other_than: RedisServer) -> RedisServer:
        """Return the primary of *slot* once it is not *other_than*, which is down; that takes a replica."""
        found = other_than

        def problem() -> str:
            nonlocal found
            found = self.primary_of(slot)
            return f"the primary of slot {slot} is still at {found.port}" if found is other_than else ""

        wait_while(problem, _OK_WITHIN)
        self._elected[found] = time.monotonic()
        return found

    def wait_until_electable(self, server: RedisServer) -> None:
        """Return when *server* can be elected again: four node timeouts after the last time, or 4 s.

        Before, Redis counts its old votes once more, and it becomes a primary that the others do not accept.
        """
        time.sleep(max(0.0, self._elected.get(server, 0.0) + self._votes_last - time.monotonic()))

    def replica_of(self, server: RedisServer) -> RedisServer:
        """Return a replica that runs and says that it is one of *server*'s, which may be down."""
        for other in self._answering():
            if self._own(other)["master_id"] == self._ids[server]:
                return other
        raise ServerError(f"the one at {server.port} has no replica")

    def failover(self, server: RedisServer, mode: str = "") -> RedisServer:
        """Make a replica of the primary *server* the primary, or *server* itself if it is a replica, and return it.

        *mode*: FORCE does not ask the primary, TAKEOVER nobody. That others know it, `wait_until_ok` tells.
        """
        replica = server if server.answering and not self._is_primary(server) else self.replica_of(server)
        elected = mode != "TAKEOVER"
        if elected:
            self.wait_until_electable(replica)
        for _ in range(_PROMOTION_ATTEMPTS):
            _ask(replica, "FAILOVER", *filter(None, [mode]))
            try:
                wait_while(lambda: "" if self._prevails(replica) else "it does not prevail", _PROMOTED_WITHIN)
            except ServerError:
                continue
            if elected:
                self._elected[replica] = time.monotonic()
            return replica
        raise ServerError(f"the one at {replica.port} did not become a primary")

    def move_slot(self, slot: int, to: RedisServer, *, at_once: bool = False) -> None:
        """Move *slot* with its keys; returns when both nodes know. The others learn of it a little later.

        *at_once*: by a snapshot and a stream of what changes, as Valkey 9 can, and not key by key.
        """
        if at_once:
            _ask(self.primary_of(slot), "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self._ids[to])
            wait_while(lambda: "" if self.primary_of(slot) is to else f"slot {slot} has not moved yet", _OK_WITHIN)
            return
        self.begin_move(slot, to)
        self.end_move(slot)

    def begin_move(self, slot: int, to: RedisServer) -> None:
        """Open *slot* at both ends: from now on a key that is not at the old node is asked for at the new one."""
        source = self.primary_of(slot)
        _ask(to, "SETSLOT", slot, "IMPORTING", self._ids[source])
        _ask(source, "SETSLOT", slot, "MIGRATING", self._ids[to])
        self._moves[slot] = source, to

    def keys_to_move(self, slot: int) -> list[bytes]:
        """Return keys of a slot that is open, at most 100, which are still at the old node."""
        source, _ = self._moves[slot]
        return list(_ask(source, "GETKEYSINSLOT", slot, _KEYS_AT_ONCE))

    def migrate(self, keys: Iterable[str | bytes]) -> None:
        """Move these keys, all of one slot that is open; those that are not at the old node are passed over."""
        wanted = list(keys)
        for at in range(0, len(wanted), _KEYS_AT_ONCE):
            some = wanted[at : at + _KEYS_AT_ONCE]
            source, to = self._moves[slot_of(some[0])]
            operator: Any = source.operator
            operator.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *some)

    def end_move(self, slot: int) -> None:
        """Move the keys that are left, and give the slot to the new node. A node without slots becomes its replica."""
        while keys := self.keys_to_move(slot):
            self.migrate(keys)
        source, to = self._moves.pop(slot)
        _ask(to, "SETSLOT", slot, "NODE", self._ids[to])  # first, so that at no moment the slot is nobody's
        try:
            _ask(source, "SETSLOT", slot, "NODE", self._ids[to])
        except ResponseError:
            if self._is_primary(source):
                raise  # else it has heard of it already

    def add_primary(self) -> RedisServer:
        """Start one more node, without slots, and return it once all nodes know it."""
        others = self._answering()
        epoch = max(int(node["epoch"]) for server in others for node in _view(server).values())
        server = self._start()
        _ask(server, "SET-CONFIG-EPOCH", epoch + 1)
        self._introduce(server, others)
        self.wait_until_ok()
        return server

    def remove(self, server: RedisServer) -> None:
        """End a node for good, and have all others forget it."""
        others = [other for other in self._answering() if other is not server]
        if self._own(server)["slots"]:
            raise ServerError(f"the one at {server.port} still has slots; move them first")
        self._end(server)
        name = self._ids.pop(server)
        self.servers.remove(server)
        for other in others:
            _ask(other, "FORGET", name)

    def wait_until_ok(self) -> None:
        """Return when each node that runs says that all is well, all others know its role, and replicas are in sync."""
        wait_while(self._defect, _OK_WITHIN)

    def stop(self) -> None:
        """End all nodes, and remove their directories. May be called again."""
        for server in self.servers:
            self._end(server)

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, environment: Mapping[str, str] | None = None) -> RedisServer:
        reserved = _reserved_ports()
        try:
            port = reserved[0].getsockname()[1]
            server = RedisServer(port=port, options=self._options, environment=environment)
        except BaseException:
            for one in reserved:
                one.close()
            raise
        self.servers.append(server)
        self._reserved[server] = reserved
        self._ids[server] = _text(_ask(server, "MYID"))
        return server

    def _end(self, server: RedisServer) -> None:
        server.kill()  # told to end, a primary would wait for replicas that lag
        server.stop()
        for one in self._reserved[server]:
            one.close()

    def _introduce(self, server: RedisServer, others: Iterable[RedisServer]) -> None:
        """Have *server* meet each of *others*, as the rumour of a node takes seconds."""
        for other in others:
            _ask(server, "MEET", "127.0.0.1", other.port)

    def _answering(self) -> list[RedisServer]:
        return [server for server in self.servers if server.answering]

    def _own(self, server: RedisServer) -> dict[str, Any]:
        return _view(server)[self._ids[server]]

    def _is_primary(self, server: RedisServer) -> bool:
        return _is_primary(self._own(server))

    def _prevails(self, server: RedisServer) -> bool:
        """Return whether *server* is a primary, and its slots are nobody else's by a later epoch."""
        own = self._own(server)
        return _is_primary(own) and all(self.primary_of(int(slots[0])) is server for slots in own["slots"])

    def _defect(self) -> str:
        answering = self._answering()
        for server in answering:
            if "cluster_state:ok" not in _text(_ask(server, "INFO")):
                return f"the state is not ok at {server.port}"
        views = {server: _view(server) for server in answering}
        for server, view in views.items():
            if view.keys() != set(self._ids.values()):
                return f"the one at {server.port} knows of {len(view)} nodes of {len(self._ids)}"
            for other in answering:
                node, itself = view[self._ids[other]], views[other][self._ids[other]]
                if not node["connected"] or {"fail", "fail?", "handshake", "noaddr"} & set(node["flags"].split(",")):
                    return f"for the one at {server.port}, {other.port} is {node['flags']}"
                roles = [(_is_primary(one), one["master_id"], one["slots"]) for one in (node, itself)]
                if roles[0] != roles[1]:
                    return f"the one at {server.port} does not know what became of {other.port}"
        return "".join(map(_replication_defect, answering))


def nodes(server: RedisServer | ClusterSet) -> list[RedisServer]:
    return server.primaries() if isinstance(server, ClusterSet) else [server]


def node_of(server: RedisServer | ClusterSet, key: str) -> RedisServer:
    return server.node_of(key) if isinstance(server, ClusterSet) else server


def slot_of(key: str | bytes) -> int:
    return key_slot(key.encode() if isinstance(key, str) else key)


def _ask(server: RedisServer, *words: object) -> Any:
    operator: Any = server.operator
    return operator.execute_command("CLUSTER", *words)


def _text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def _view(server: RedisServer) -> dict[str, dict[str, Any]]:
    """Return what *server* knows of each node, by its id, as redis-py reads CLUSTER NODES."""
    operator: Any = server.operator
    return {node["node_id"]: node for node in operator.cluster("NODES").values()}


def _is_primary(node: dict[str, Any]) -> bool:
    return "master" in node["flags"].split(",")


def _has(node: dict[str, Any], slot: int) -> bool:
    return any(int(slots[0]) <= slot <= int(slots[-1]) for slots in node["slots"])


def _ignorance(server: RedisServer, name: str) -> str:
    return "" if name in _view(server) else f"the one at {server.port} does not know {name} yet"


def _replication_defect(server: RedisServer) -> str:
    role = role_of(server)
    in_sync = role[0] == b"master" or role[3] == b"connected"
    return "" if in_sync else f"the replica at {server.port} is not in sync: {role}. "


def _reserved_ports() -> tuple[socket.socket, socket.socket]:
    """Return two sockets that are bound to a node's two ports: as `reserved_port`, for the bus as well."""
    while True:
        port, bus = reserved_port(), socket.socket()
        try:
            bus.bind(("127.0.0.1", port.getsockname()[1] + _BUS))
        except OSError:
            port.close()
            bus.close()
            continue
        bus.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return port, bus
