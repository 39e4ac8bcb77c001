"""Schedules written by hand, in the same world: for what chance brings about too seldom to wait for.

Each is swept over a range of moments, because what it is about happens between two messages.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import final

from aiolocks import LeaseLostError, Lock
from aiolocks.testing import check_exclusion, check_fencing, check_linearizable

from .cluster import Cluster
from .history import History
from .network import Network, Weather
from .observer import Observer
from .process import Process
from .run import governed
from .server import Server
from .workload import Program
from .world import World

TTL = 1.0


@final
class Stage:
    """A world without mishaps but those that the scenario brings about.

    Attributes:
        cluster: If there are several *nodes*: these, of which two are primaries. `server` is the first of them.
        servers: The nodes, or so many *voters*, or the one server.
    """

    def __init__(self, world: World, nodes: int = 0, voters: int = 1) -> None:
        self.world = world
        self.servers = servers = [Server(world, 1.0) for _ in range(nodes or voters)]
        self.server = servers[0]
        self.cluster = Cluster(world, servers, primaries=2) if nodes else None
        self.history = History(world)
        for server in () if nodes else servers[1:]:
            Observer(world, server, self.history)
        self.observer = Observer(world, self.cluster or self.server, self.history)
        self.networks = [Network(world, server) for server in servers]
        self.network = self.networks[0]
        for network in self.networks:
            network.weather = Weather(latency=0.002)
        self.programs: list[Program] = []

    def program(self) -> Program:
        process = Process(self.world, len(self.programs) + 1, 1.0)
        cluster = self.cluster is not None
        self.programs.append(
            Program(self.world, self.networks, self.history, process, [], calm=True, far=False, cluster=cluster)
        )
        return self.programs[-1]

    def notices_late(self, program: Program, seconds: float) -> None:
        """Hold back what the server sends to the subscribed connection of *program*."""
        for wire in self.network.wires:
            if wire.process is program.process and wire.socket._pubsub:
                wire._down.delay(seconds)

    async def hold(self, program: Program, name: str, begin: float, seconds: float, *, renew: bool = True) -> None:
        """Ask for *name* at true time *begin*, and hold it for so long or until it is lost."""
        await asyncio.sleep(begin)
        asked = self.history.now_ns()
        with contextlib.suppress(LeaseLostError):
            async with Lock(program.client, name, ttl=TTL, renew=renew) as lease:
                self.history.acquired(program.process, lease, asked)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    self.history.ended(program.process, lease)


def news_of_another(stage: Stage, moment: float) -> None:
    """A notice is late, and meanwhile a re-check for another name is answered."""
    owner, waiter = stage.program(), stage.program()
    owner.process.begin(stage.hold(owner, "a", 0.0, 4.0))
    owner.process.begin(stage.hold(owner, "b", 0.0, 1.0 + moment))
    waiter.process.begin(stage.hold(waiter, "a", 0.1, 0.1))
    waiter.process.begin(stage.hold(waiter, "b", 0.2, 3.0, renew=False))
    stage.world.at(0.99 + moment, stage.notices_late, waiter, 0.24)


def old_notice(stage: Stage, moment: float) -> None:
    """A process is stopped while it is handed the lock, loses it, queues anew; then the notice comes."""
    owner, waiter, other = stage.program(), stage.program(), stage.program()
    owner.process.begin(stage.hold(owner, "a", 0.0, 1.0 + moment))
    waiter.process.begin(stage.hold(waiter, "a", 0.1, 0.5))
    other.process.begin(stage.hold(other, "a", 2.2 + moment, 4.0))
    stage.world.at(0.99 + moment, stage.notices_late, waiter, 3.0)
    stage.world.at(0.99 + moment, lambda: waiter.process.stop(suspend=False))
    stage.world.at(2.4 + moment, waiter.process.resume)


SCENARIOS: dict[str, Callable[[Stage, float], None]] = {
    "counted-from-a-recheck-for-another": news_of_another,
    "stale-notices-believed": old_notice,
}
"""By the defect that each is to find."""


def play(name: str, moments: int = 40) -> list[str]:
    """Play a scenario at many moments, and return what was violated."""
    found: list[str] = []
    for number in range(moments):
        world = World(number)
        with governed(world):
            stage = Stage(world)
            SCENARIOS[name](stage, 0.01 * number)
            world.go_on(20.0)
            for program in stage.programs:
                program.process.end()
        history = stage.history.events
        found += world.violations or [*check_exclusion(history), *check_fencing(history), *check_linearizable(history)]
        for program in stage.programs:
            if not program.done():
                found.append(f"{program.process.name} waits for ever")
    return found
