"""A Redis Cluster in the test's own hands, in virtual time: each node is an `Answering`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.exceptions import MovedError

from aiolocks._core.keys import SLOTS, slot_of
from tests.support.answering import Answering, Asked

Answer = Callable[["Node", Asked], object]

HOST = "10.0.0.1"


class Node(Answering):
    """One node, known by its *port*."""

    def __init__(self, cluster: "Nodes", port: int) -> None:
        super().__init__(partial(Nodes.answer, cluster, self))
        self.port = port

    @property
    def work(self) -> list[Asked]:
        """What it was asked, but for what the Cluster is like."""
        return [asked for asked in self.asked if asked.what not in {"CLUSTER", "PUBSUB"}]


class Nodes:
    """Nodes at the given *ports*; the first has all slots, and *does* answers all that is not about slots.

    Attributes:
        knows: What a node says of the slots, or of channels, where that is not the truth; by its port and the command.
    """

    def __init__(self, *ports: int, does: Answer = lambda node, asked: node.port) -> None:
        self.nodes = {port: Node(self, port) for port in ports}
        self.owners = [ports[0]] * SLOTS
        self.does: Answer = does
        self.knows: dict[tuple[int, str], object] = {}
        self.client = self.client_of(*ports)

    def client_of(self, *ports: int) -> RedisCluster:
        client: RedisCluster = RedisCluster(startup_nodes=[ClusterNode(HOST, port) for port in ports])
        client.nodes_manager.connection_kwargs["connection_class"] = self._connection
        return client

    def __getitem__(self, port: int) -> Node:
        return self.nodes[port]

    def give(self, base: bytes, port: int) -> None:
        self.owners[slot_of(base)] = port

    def answer(self, node: Node, asked: Asked) -> object:
        if asked.what not in {"CLUSTER", "PUBSUB"} or len(asked.words) > 2:
            return self.does(node, asked)
        known = self.knows.get((node.port, asked.what))
        if known is None:
            known = self.slots() if asked.what == "CLUSTER" else []
        return known

    def slots(self) -> list[Any]:
        ranges: list[Any] = []
        for slot, port in enumerate(self.owners):
            if ranges and ranges[-1][2][1] == port:
                ranges[-1][1] = slot
            else:
                ranges.append([slot, slot, [HOST.encode(), port, b"id of %d" % port, []]])
        return ranges

    def moved(self, base: bytes) -> MovedError:
        """Return what a node says that does not have the slot of *base*."""
        slot = slot_of(base)
        return MovedError(f"{slot} {HOST}:{self.owners[slot]}")

    def refresh_times(self) -> list[float]:
        return sorted(at for node in self.nodes.values() for at in node.times("CLUSTER"))

    def _connection(self, *, host: str, port: int, **_: object) -> Any:
        return self.nodes[port].make_connection()
