"""The servers of one run, each with its own network and misfortunes: one, or several that vote."""

from dataclasses import dataclass
from typing import final

from .faults import Faults
from .history import History
from .network import Network
from .observer import VOTED, Observer
from .process import Process
from .server import Server
from .wire import Wire
from .world import World


@final
@dataclass(slots=True)
class Site:
    """One server, who watches it, the way to it, and what befalls it."""

    server: Server
    observer: Observer
    network: Network
    faults: Faults


@final
class Sites:
    """All of them. The first is the one that everything lives on that is not voted on."""

    def __init__(self, world: World, history: History, sites: list[Site]) -> None:
        self._world = world
        self._history = history
        self.all = sites
        history.look = self.look
        history.sane = lambda: self.sane
        history.free_since, history.started = sites[0].observer.free_since, sites[0].observer.started

    @property
    def sane(self) -> bool:
        return self.all[0].observer.sane

    def wires(self) -> list[Wire]:
        return [wire for site in self.all for wire in site.network.wires]

    def stepped(self) -> float:
        return sum(site.faults.stepped for site in self.all)

    def held(self, base: str) -> bool:
        return any(site.observer.held(base.encode()) for site in self.all)

    def look(self, base: str) -> None:
        """P1: whoever believes to hold *base* does; what is voted on, on a majority of the servers."""
        if not base.startswith(VOTED):
            self.all[0].observer.look(base)
        elif self.sane:
            for token in self._history.believed(base):
                count = sum(site.observer.holds(base, token) for site in self.all)
                if 2 * count <= len(self.all):
                    self._world.violate(f"P1: {base}: {token[:8]} believes to hold, but does on {count} servers only")

    def heal(self, dead: list[Process]) -> None:
        """End all faults; of the *dead*, the servers hear at last."""
        for site in self.all:
            site.faults.heal()
        for wire in [wire for wire in self.wires() if wire.process in dead]:
            wire.network.wires.pop(wire, None)
        for site in self.all:
            for socket in site.server.sockets():
                if getattr(socket.outlet, "process", None) in dead:
                    site.server.close(socket)
