"""A world for schedules that are written by hand."""

from typing import final

from .cluster import Cluster
from .history import History
from .network import Network, Weather
from .observer import Observer
from .process import Process
from .server import Server
from .workload import Program
from .world import World


@final
class Stage:
    """A world without mishaps but those that a test brings about, with one server, *nodes* of a Cluster or *voters*."""

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
