"""Liveness: one process or server fails for good, and all the others go on.

In the other runs all faults end before the wait of any process is judged. Here one never does: a process is stopped,
deaf or cut off for good, or one of three voting servers is gone. Each acquisition of the other processes must be served
within a bound of virtual time: it allows for the lease of the failed process, and for one more handed to it (W3).
"""

import asyncio
import gc
from collections.abc import Iterable
from typing import final

from .process import Process
from .run import RECHECK, SERVERS, Outcome, governed, judge
from .runner import Total
from .stage import Stage
from .things import KINDS, Thing
from .workload import Program
from .world import World

LONGEST_BODY = 0.1
TURNS = 6
"""Acquisitions of each task of a process that goes on."""

WAITERS = 6
"""Tasks of the process that fails: with each of them for a lease, it would be in the way of the others for too long."""

FAULTS = ("stopped", "deaf", "cut off", "server gone")
"""Of a process, the first three; and of one of the servers that vote on a `Redlock`."""

FOR_GOOD = "for good: "
"""How the figures of coverage call the faults of this mode."""


def explore(seeds: Iterable[int]) -> Total:
    total = Total()
    for seed in seeds:
        total.add(run_liveness(seed))
        gc.collect()
    return total


def run_liveness(seed: int, *, tracing: bool = False) -> Outcome:
    """Run one seed in which a fault never heals. The same seed has the same outcome and trace."""
    world = World(seed, tracing=tracing)
    with governed(world):
        _Run(world).run()
    return Outcome(seed, world.violations, world.met, world.trace, world.now)


@final
class _Run:
    def __init__(self, world: World) -> None:
        rng = world.rng
        self._world = world
        self._fault = rng.choice(FAULTS)
        voting = self._fault == "server gone"
        kinds = ("redlock",) if voting else tuple(kind for kind in KINDS if kind != "redlock")
        self._thing = Thing.drawn(rng, kinds, "name", [0.8, 1.6, 4.0])
        self._stage = Stage(world, voters=SERVERS if voting else 1)
        self._failing = self._stage.program()
        self._others = [self._stage.program() for _ in range(rng.choice([1, 2, 3]))]
        self._tasks = rng.choice([1, 2])
        self._fails_at = rng.uniform(0.2, 1.0)

    @property
    def bound(self) -> float:
        """Seconds for which a process may wait: two leases of the failed one on each name, and the others' turns."""
        names = {"multilock": self._thing.limit, "hierarchy": 3}.get(self._thing.kind, 1)
        turns = (len(self._others) * self._tasks + WAITERS) * (LONGEST_BODY + 0.1)
        return 2 * names * self._thing.ttl + 2 * RECHECK + turns

    def run(self) -> None:
        world = self._world
        for _ in range(WAITERS):
            self._failing.process.begin(self._work(self._failing))
        for program in self._others:
            for _ in range(self._tasks):
                program.process.begin(self._work(program))
        world.at(self._fails_at, self._fail)
        try:
            world.go_on(TURNS * self.bound + 5, lambda: all(program.done() for program in self._others))
        finally:
            for program in self._stage.programs:
                program.process.end()
        if not world.violations:
            self._judge()

    async def _work(self, program: Program) -> None:
        rng, process, history = self._world.rng, program.process, self._stage.history
        for _ in range(TURNS):
            await asyncio.sleep(rng.random() * 0.3)
            primitive = self._thing.make(program.clients, rng, {"ttl": self._thing.ttl})
            served, asked = asyncio.Event(), history.now_ns()
            if program is not self._failing:
                self._world.after(self.bound, self._must_be, served, process)
            lease = await program.insist(primitive)
            served.set()
            async with lease:
                history.acquired(process, lease, asked)
                await asyncio.sleep(rng.random() * LONGEST_BODY)
                history.ended(process, lease)

    def _must_be(self, served: asyncio.Event, process: Process) -> None:
        if not served.is_set():
            bound, name = self.bound, self._thing.base
            self._world.violate(
                f"P13: {process.name} has waited for {name} for {bound:.3f} s, while one is {self._fault}"
            )

    def _fail(self) -> None:
        world, process = self._world, self._failing.process
        world.meet(f"{FOR_GOOD}{self._fault}")
        if self._fault == "server gone":
            network = world.rng.choice(self._stage.networks)
            network.server.down = True
            for wire in list(network.wires):
                (wire.closed_by_server if world.chance(0.5) else wire.black_hole)()
        elif self._fault == "stopped":
            process.stop(suspend=False)
        else:
            for network in self._stage.networks:
                network.cut_off.add(process)
                for wire in [wire for wire in network.wires if wire.process is process]:
                    (wire.deafen if self._fault == "deaf" else wire.black_hole)()

    def _judge(self) -> None:
        world, history = self._world, self._stage.history.events
        for program in self._others:
            for task in program.process.tasks:
                if task.cancelled() or task.exception() is not None:
                    world.violate(f"P13: {program.process.name} did not get its turns: {task!r}")
        judge(world, history, sane=True)
