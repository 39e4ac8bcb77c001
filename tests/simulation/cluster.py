"""Nodes that share the slots, as a Redis Cluster's do: which of them has a key, and what the others answer instead.

They live by one clock, as what goes along with its slot is counted on by the clock of whoever gets it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

from fakeredis._helpers import SimpleError

from aiolocks._core.keys import SLOTS, channel_of, slot_of

from .server import WAKE, RawError, Server, ServerSocket, Watcher
from .world import World

FIRST_PORT = 7000
"""Of the first node. A node names no host, only a port: whoever asks takes the host that it has reached it by."""

_KEYLESS = frozenset({"info", "publish", "time"})
_OF_MANY_KEYS = frozenset({"del", "exists", "mget", "touch", "unlink"})
_NOT_LOCAL = "ERR Script attempted to access a non local key in a cluster node"


@final
@dataclass(slots=True)
class Map:
    """Who has which slot: a primary for each even part of them, but for those that were moved."""

    homes: list[int]
    moved: dict[int, int] = field(default_factory=dict[int, int])

    def owner(self, slot: int) -> int:
        return self.moved.get(slot, self.homes[slot * len(self.homes) // SLOTS])

    def copy(self) -> "Map":
        return Map(list(self.homes), dict(self.moved))

    def give_all(self, old: int, new: int) -> None:
        """Let *new* have whatever *old* has."""
        self.homes = [new if home == old else home for home in self.homes]
        self.moved = {slot: new if owner == old else owner for slot, owner in self.moved.items()}

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield the first and the last slot of each range, and who has it."""
        count = len(self.homes)
        firsts = {-(-part * SLOTS // count) for part in range(count)}
        edges = sorted(firsts | self.moved.keys() | {slot + 1 for slot in self.moved if slot + 1 < SLOTS})
        for first, end in zip(edges, [*edges[1:], SLOTS], strict=True):
            yield first, end - 1, self.owner(first)


@final
class Cluster:
    """Stands where one server does, for its observer; programs see its nodes only, of which some are spare.

    Those that are `silenced` answer CLUSTERDOWN for now.
    """

    def __init__(self, world: World, nodes: list[Server], primaries: int) -> None:
        self.nodes = nodes
        self.silenced: set[int] = set()
        self._world = world
        self._truth = Map(list(range(primaries)))
        self._views = [self._truth.copy() for _ in nodes]
        self._open: dict[int, tuple[int, int]] = {}
        for number, node in enumerate(nodes):
            node.gate = Node(self, number)

    @property
    def watcher(self) -> Watcher:
        return self.nodes[0].watcher

    @watcher.setter
    def watcher(self, watcher: Watcher) -> None:
        for node in self.nodes:
            node.watcher = watcher

    def clock(self) -> float:
        return self.nodes[0].clock()

    def true_time(self, wall: float) -> float:
        return self.nodes[0].true_time(wall)

    def database(self) -> "AllKeys":
        return AllKeys([node.database() for node in self.nodes])

    def listeners(self, base: bytes, session: bytes) -> int:
        """As `Server.listeners`. While a slot is open, nobody counts: who was in front may be met as gone."""
        slot = slot_of(base)
        if slot in self._open:
            return 0
        return self.nodes[self.owner(slot)].subscribers(channel_of(base, WAKE + b"{", session))

    def owner(self, slot: int) -> int:
        return self._truth.owner(slot)

    def has_slots(self, number: int) -> bool:
        return number in self._truth.homes or number in self._truth.moved.values()

    def opened(self, slot: int) -> bool:
        return slot in self._open

    def view(self, number: int) -> Map:
        return self._views[number]

    def begin_move(self, slot: int, target: int) -> None:
        self._open[slot] = self.owner(slot), target
        self.watcher.unsubscribed([])

    def keys_to_move(self, slot: int) -> list[bytes]:
        """Return the keys of a slot that are still where they were, in an order that is the same in each process."""
        return sorted(key for key in list(self.nodes[self._open[slot][0]].database()) if slot_of(key) == slot)

    def migrate(self, slot: int, key: bytes) -> None:
        source, target = self._open[slot]
        _carry(self.nodes[source], self.nodes[target], key)

    def end_move(self, slot: int) -> None:
        """Move what is left, and give the slot away; other nodes hear of it later."""
        for key in self.keys_to_move(slot):
            self.migrate(slot, key)
        source, target = self._open.pop(slot)
        self._truth.moved[slot] = target
        self._changed(source, target)
        self._end_subscriptions(source)

    def replace(self, old: int, new: int) -> None:
        """Let *new*, which was a replica, have all that *old* has."""
        for slot, (source, target) in list(self._open.items()):
            if old in (source, target) or new in (source, target):
                self.end_move(slot)
        for key in list(self.nodes[old].database()):
            _carry(self.nodes[old], self.nodes[new], key)
        self._truth.give_all(old, new)
        self._changed(old, new)
        self._end_subscriptions(old)

    def tell(self, number: int) -> None:
        self._views[number] = self._truth.copy()

    def heal(self) -> None:
        """End what is under way, and let all know."""
        for slot in list(self._open):
            self.end_move(slot)
        self.silenced.clear()
        for number in range(len(self.nodes)):
            self.tell(number)

    def is_open_here(self, slot: int, number: int) -> tuple[bool, int | None]:
        """Return whether *slot* is being moved to a node, and where to if it is being moved away from it."""
        source, target = self._open.get(slot, (-1, -1))
        return target == number, target if source == number else None

    def _changed(self, *informed: int) -> None:
        for number in range(len(self.nodes)):
            if number in informed:
                self.tell(number)
            else:
                self._world.after(self._world.rng.random() * 0.5, self.tell, number)

    def _end_subscriptions(self, number: int) -> None:
        node = self.nodes[number]
        gone = [channel for channel in node.fake.ssubscribers if self.owner(slot_of(channel)) != number]
        for channel in gone:
            for socket in node.sockets():  # in the order in which they came
                if socket in node.fake.ssubscribers.get(channel, ()):
                    socket.unsubscribe_from_shard(channel)
        node.send_replies()
        self.watcher.unsubscribed(gone)


@final
class Node:
    """One node's idea of what it answers for."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self._number = number

    def answer(self, socket: ServerSocket, fields: list[bytes]) -> Any:
        """Return what is answered in place of running a request, or None."""
        command = fields[0].upper()
        if command == b"ASKING":
            return b"OK"
        if command == b"CLUSTER":
            return [
                [first, last, [b"", FIRST_PORT + owner, b"node%d" % owner]]
                for first, last, owner in self._cluster.view(self._number).ranges()
            ]
        if command in (b"EVAL", b"EVALSHA"):
            return self._refusal(socket, fields[3 : 3 + int(fields[2])])
        return self._refusal(socket, fields[1:], channel=True) if command == b"SSUBSCRIBE" else None

    def check(self, socket: ServerSocket, command: str, args: list[bytes]) -> None:
        """Raise what ends a script that does what it may not do here."""
        if command in _KEYLESS or command.startswith("pubsub"):
            return
        keys = args if command in _OF_MANY_KEYS else args[:1]
        if self._refusal(socket, keys, channel=command == "spublish") is not None:
            raise SimpleError(_NOT_LOCAL)

    def _refusal(self, socket: ServerSocket, keys: list[bytes], *, channel: bool = False) -> RawError | None:
        """Return why these keys are not to be had here now; as Redis 7.0 has it."""
        cluster, number = self._cluster, self._number
        slot = slot_of(keys[0])
        if any(slot_of(key) != slot for key in keys):
            return RawError("CROSSSLOT Keys in request don't hash to the same slot")
        if number in cluster.silenced:
            return RawError("CLUSTERDOWN The cluster is down")
        database = cluster.nodes[number].database()
        arriving, leaving_to = cluster.is_open_here(slot, number)
        missing = [] if channel else [key for key in keys if database.get(key) is None]
        if leaving_to is not None and missing:
            if len(missing) < len(keys):
                return RawError("TRYAGAIN Multiple keys request during rehashing of slot")
            return RawError(f"ASK {slot} :{FIRST_PORT + leaving_to}")
        if arriving and socket.asking:
            if len(keys) > 1 and missing:
                return RawError("TRYAGAIN Multiple keys request during rehashing of slot")
            return None
        owner = cluster.view(number).owner(slot)
        return None if owner == number else RawError(f"MOVED {slot} :{FIRST_PORT + owner}")


@final
class AllKeys:
    """The keys of all nodes at one moment."""

    def __init__(self, databases: list[Any]) -> None:
        self._databases = databases
        self.time: float = databases[0].time

    def get(self, key: bytes) -> Any:
        return next((item for item in (each.get(key) for each in self._databases) if item is not None), None)


def _carry(source: Server, target: Server, key: bytes) -> None:
    """Move a key with its value and its end; there can be no other of that name."""
    item = source.database().get(key)
    if item is not None:
        there = target.database()
        del source.database()._dict[key]
        there._dict[key] = item
        there.schedule_expiry(key, item.expireat)
