"""What befalls a Cluster besides what befalls each node: slots are moved, primaries replaced, and some answer nothing.

As in `faults`, each run has some kinds only.
"""

from functools import partial
from typing import final

from aiolocks._core.keys import slot_of

from .cluster import Cluster
from .faults import Kind, Regime, Striking
from .network import Network
from .observer import Observer
from .server import Server
from .world import World

NO_REPLICAS = "NOREPLICAS Not enough good replicas to write."
READ_ONLY = "READONLY You can't write against a read only replica."

_LONGEST = 3.0
"""Seconds for which a slot is held open, and writes or all requests are refused, at most."""


@final
class ClusterFaults(Striking):
    """What befalls all nodes together."""

    def __init__(
        self, world: World, cluster: Cluster, networks: list[Network], observer: Observer, regime: Regime,
        bases: list[str],
    ) -> None:  # fmt: skip
        super().__init__(world)
        self._cluster, self._networks, self._observer, self._bases = cluster, networks, observer, bases
        kinds = [
            Kind("slot moved", 1.5, self._move, self._slot),
            Kind("slot moved to and fro", 0.8, self._to_and_fro, self._slot),
            Kind("slot held open", 0.5, self._hold_open, self._slot_and_target),
            Kind("planned failover", 0.4, cluster.replace, self._spare),
            Kind("primary killed", 0.25, self._kill, self._spare),
            Kind("too few replicas for a while", 0.3, partial(self._refuse, NO_REPLICAS), self._writing),
            Kind("read only for a while", 0.3, partial(self._refuse, READ_ONLY), self._writing),
            Kind("cluster down for a while", 0.3, self._silence),
        ]
        self._kinds = [kind for kind in kinds if world.chance(0.4)] if regime != "calm" else []
        if regime == "loss":
            self._kinds.append(Kind("replaced by an emptier one", 0.3, self._lose, self._spare))
        for kind in self._kinds:
            self._next(kind)

    def heal(self) -> None:
        self._over = True
        for node in self._cluster.nodes:
            node.refusing = ""
        self._cluster.heal()

    def _slot(self) -> tuple[int]:
        return (slot_of(self._world.rng.choice(self._bases).encode()),)

    def _slot_and_target(self) -> tuple[int, int] | None:
        [slot] = self._slot()
        target = self._another(slot)
        return None if target is None else (slot, target)

    def _another(self, slot: int) -> int | None:
        """Return a node that *slot* may go to."""
        cluster = self._cluster
        owner = cluster.owner(slot)
        others = [
            number
            for number, node in enumerate(cluster.nodes)
            if number != owner and cluster.has_slots(number) and not node.down
        ]
        free = others and not cluster.opened(slot) and not cluster.nodes[owner].down
        return self._world.rng.choice(others) if free else None

    def _move(self, slot: int) -> None:
        if not self._over and (target := self._another(slot)) is not None:
            self._cluster.begin_move(slot, target)
            self._cluster.end_move(slot)

    def _to_and_fro(self, slot: int) -> None:
        """So fast that what was sent to the one is sent on to the other when the first has it again."""
        world, at = self._world, 0.0
        for _ in range(world.rng.choice([2, 4, 10])):
            world.after(at, self._move, slot)
            at += world.rng.choice([0.0005, 0.005, 0.05]) * world.rng.random()

    def _hold_open(self, slot: int, target: int) -> None:
        """Move the keys one by one, and in any order."""
        world = self._world
        self._cluster.begin_move(slot, target)
        length = world.rng.choice([0.02, 0.3, _LONGEST]) * world.rng.random()
        for _ in range(world.rng.choice([0, 1, 3, 20])):
            world.after(length * world.rng.random(), self._migrate, slot)
        world.after(length, self._end_move, slot)

    def _migrate(self, slot: int) -> None:
        if self._cluster.opened(slot) and (keys := self._cluster.keys_to_move(slot)):
            self._world.meet("key moved alone")
            self._cluster.migrate(slot, self._world.rng.choice(keys))

    def _end_move(self, slot: int) -> None:
        if self._cluster.opened(slot):
            self._cluster.end_move(slot)

    def _spare(self) -> tuple[int, int] | None:
        """Return a primary that runs, and one that may have all it has."""
        cluster = self._cluster
        nodes = [number for number, node in enumerate(cluster.nodes) if not node.down and not node.stopped]
        old = [number for number in nodes if cluster.has_slots(number)]
        new = [number for number in nodes if not cluster.has_slots(number)]
        return (self._world.rng.choice(old), self._world.rng.choice(new)) if old and new else None

    def _lose(self, old: int, new: int) -> None:
        self._cluster.replace(old, new)
        database = self._cluster.nodes[new].database()
        lost = {slot for slot in sorted({slot_of(key) for key in database}) if self._world.chance(0.5)}
        for key in [key for key in database if slot_of(key) in lost]:  # all of a name: a script is replicated whole
            del database[key]
        self._observer.forget()

    def _kill(self, old: int, new: int) -> None:
        """End a primary; a while later a replica has what it had, and another while later it comes back as one."""
        world, cluster = self._world, self._cluster
        self._networks[old].end_server()
        if world.chance(0.5):  # cluster-require-full-coverage, the default
            cluster.silenced |= set(range(len(cluster.nodes))) - {old, new}
        world.after(world.rng.choice([0.05, 0.5, 2.0]) * world.rng.random(), self._promote, old, new)

    def _promote(self, old: int, new: int) -> None:
        if self._over:
            return
        self._cluster.silenced.clear()
        self._cluster.replace(old, new)
        self._world.after(self._world.rng.random(), self._come_back, old)

    def _come_back(self, number: int) -> None:
        if not self._over:
            self._cluster.nodes[number].down = False

    def _writing(self) -> tuple[Server] | None:
        node = self._world.rng.choice(self._cluster.nodes)
        return None if node.refusing else (node,)

    def _refuse(self, error: str, node: Server) -> None:
        node.refusing = error
        self._world.after(_LONGEST * self._world.rng.random(), setattr, node, "refusing", "")

    def _silence(self) -> None:
        number = self._world.rng.randrange(len(self._cluster.nodes))
        self._cluster.silenced.add(number)
        self._world.after(_LONGEST * self._world.rng.random(), self._cluster.silenced.discard, number)
