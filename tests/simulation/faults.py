"""What befalls a run, drawn from its seed: which kinds of fault at all, how often, and when.

A run in which everything goes wrong at once shows little, as nothing gets done. So each run has some kinds only
("swarm testing": Groce et al., ISSTA 2012).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

from .network import Network, Weather
from .observer import Observer
from .process import Process
from .server import Server
from .wire import Wire
from .world import World

Regime = Literal["calm", "sane", "steps", "loss"]
"""Calm: nothing befalls, and all must go smoothly. Sane: the server keeps its data and its clock its pace. Else leases
may be lost, and only fencing tokens help (L2, L5)."""


@dataclass(slots=True)
class Kind:
    """One kind of fault: about how many times per second of chaos, what it does, and to what, if it can be done now."""

    name: str
    per_second: float
    strike: Callable[..., object]
    aim: Callable[[], tuple[Any, ...] | None] = tuple


class Striking:
    """Has faults strike until `heal`, each kind at random times."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._over = False

    def _next(self, kind: Kind) -> None:
        self._world.after(self._world.rng.expovariate(kind.per_second), self._strike, kind)

    def _strike(self, kind: Kind) -> None:
        if not self._over:
            if (target := kind.aim()) is not None:
                self._world.meet(kind.name)
                kind.strike(*target)
            self._next(kind)


@final
class Faults(Striking):
    """What befalls one server, the way to it, and the processes."""

    def __init__(
        self, world: World, network: Network, server: Server, observer: Observer, regime: Regime, longest_ttl: float,
        processes: Callable[[], list[Process]], crash: Callable[[Process, bool], None],
        leave: Callable[[Process], None],
    ) -> None:  # fmt: skip
        super().__init__(world)
        self._network, self._server, self._observer = network, server, observer
        self._ttl = longest_ttl
        self._processes = processes
        self.stepped = 0.0
        kinds = [
            Kind("connection cut", 0.6, Wire.cut, self._wire),
            Kind("connection closed by the server", 0.3, self._kill, self._wires),
            Kind("half-open connection", 0.25, Wire.black_hole, self._wire),
            Kind("partition", 0.15, lambda process: network.partition(process, self._length()), self._process),
            Kind("process stopped", 0.3, self._stop, self._process),
            Kind("machine suspended", 0.1, partial(self._stop, suspend=True), self._process),
            Kind("crash", 0.2, lambda process: crash(process, False), self._process),
            Kind("crash, half-open", 0.2, lambda process: crash(process, True), self._process),
            Kind("process ended politely", 0.12, leave, self._process),
            Kind("server stopped", 0.15, self._stop_server, lambda: None if server.stopped else ()),
            Kind("server restarted with its data", 0.08, self._restart),
            Kind("wall clock of a process stepped", 0.2, self._step_client, self._process),
        ]
        self._kinds = [kind for kind in kinds if world.chance(0.3)] if regime != "calm" else []
        if regime == "steps":
            self._kinds.append(Kind("server clock stepped", 0.3, self._step_server))
        elif regime == "loss":
            self._kinds.append(Kind("server restarted empty", 0.15, partial(self._restart, empty=True)))
            self._kinds.append(Kind("FLUSHALL", 0.15, self._flush_data))
        calm = regime == "calm"
        network.weather = Weather(latency=world.rng.choice([0.0005, 0.005, 0.02])) if calm else self._weather()
        for kind in self._kinds:
            self._next(kind)

    def stop_often(self) -> None:
        """Stop one process or another for about as long as a lease lasts, again and again."""
        self._next(Kind("process stopped", 1.0, self._stop, self._process))

    def heal(self) -> None:
        """End all faults: what was stopped goes on, what was held back comes."""
        self._over = True
        self._network.heal()
        self._server.down = False
        self._server.resume()
        for process in self._processes():
            process.resume()

    def _weather(self) -> Weather:
        world, rng = self._world, self._world.rng

        def sometimes(most: float) -> float:
            return rng.random() * most if world.chance(0.3) else 0.0

        return Weather(
            latency=rng.choice([0.0002, 0.001, 0.005, 0.03]), slow=sometimes(0.2),
            slowness=rng.choice([0.05, 0.5, 3.0]), notice_late=sometimes(0.6), in_pieces=sometimes(0.3),
            refused=sometimes(0.5), swallowed=sometimes(0.2), request_lost=sometimes(0.1), reply_lost=sometimes(0.15),
            reply_swallowed=sometimes(0.05), request_held=sometimes(0.1), held_for=rng.choice([0.1, 1.0, 8.0]),
            repeated=sometimes(0.3), script_flush=sometimes(0.1),
        )  # fmt: skip

    def _process(self) -> tuple[Process] | None:
        processes = [process for process in self._processes() if not process.stopped]
        return (self._world.rng.choice(processes),) if processes else None

    def _wire(self) -> tuple[Wire] | None:
        wires = list(self._network.wires)
        return (self._world.rng.choice(wires),) if wires else None

    def _wires(self) -> tuple[list[Wire]] | None:
        """Return all or one, as CLIENT KILL TYPE normal or pubsub hits them, or of one."""
        wires = list(self._network.wires)
        if not wires:
            return None
        return (wires if self._world.chance(0.3) else [self._world.rng.choice(wires)],)

    def _length(self) -> float:
        return self._world.rng.choice([0.05, 0.5, 2.0]) * self._ttl * self._world.rng.random()

    def _kill(self, wires: list[Wire]) -> None:
        for wire in wires:
            wire.closed_by_server()

    def _stop(self, process: Process, *, suspend: bool = False) -> None:
        process.stop(suspend=suspend)
        self._world.after(self._length(), process.resume)

    def _stop_server(self) -> None:
        self._server.stopped = True
        self._world.after(self._length(), self._server.resume)

    def _restart(self, *, empty: bool = False) -> None:
        world, server = self._world, self._server
        server.resume()
        self._network.end_server()
        if empty:
            self._flush_data()
        world.after(world.rng.choice([0.01, 0.5, 2.0]) * world.rng.random(), setattr, server, "down", False)

    def _flush_data(self) -> None:
        self._server.flush_data()
        self._observer.forget()

    def _step_server(self) -> None:
        seconds = self._world.rng.choice([0.1, 2.0, 60.0]) * self._world.rng.uniform(-1, 1)
        self._server.step(seconds)
        self.stepped += abs(seconds)
        self._observer.stepped_back += max(-seconds, 0.0)

    def _step_client(self, process: Process) -> None:
        process.step_wall_clock(self._world.rng.uniform(-1000, 1000))
