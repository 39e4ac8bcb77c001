"""One run: a world from a seed, chaos for some seconds, then peace, and whether all that was promised held."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import final

from aiolocks._session import Session
from aiolocks.testing import (
    check_ended,
    check_exclusion,
    check_fencing,
    check_linearizable,
    check_residue,
    stale_writes,
)

from .faults import Faults, Regime
from .history import History
from .network import Network
from .observer import Observer
from .process import Process, lease_clock
from .server import Server
from .workload import LONGEST_BODY, Program, Thing
from .world import World

RECHECK = 1.0
"""Seconds: the longest re-check interval, which bounds how long a lost notice costs."""

DRIFT = 0.003
"""How much faster or slower than true time a clock may run; two of them stay within the library's allowance of 1 %."""


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    violations: list[str]
    met: Counter[str]
    trace: list[str] = field(default_factory=list[str])
    seconds: float = 0.0


def run(seed: int, *, tracing: bool = False) -> Outcome:
    """Run one seed. The same seed has the same outcome and trace."""
    world = World(seed, tracing=tracing)
    with governed(world):
        _Run(world).run()
    return Outcome(seed, world.violations, world.met, world.trace, world.now)


@contextmanager
def governed(world: World) -> Iterator[None]:
    """Have the library live in *world*, quietly, meanwhile."""
    log = logging.getLogger("aiolocks")
    level, earlier = log.level, Session.clock
    log.setLevel(logging.CRITICAL)
    Session.clock = staticmethod(lease_clock)
    try:
        with world.governing():
            yield
    finally:
        Session.clock = staticmethod(earlier)
        log.setLevel(level)


@final
class _Run:
    def __init__(self, world: World) -> None:
        rng = world.rng
        self._world = world
        self._regime: Regime = rng.choices(["calm", "sane", "steps", "loss"], [16, 62, 11, 11])[0]  # type: ignore[assignment]  # as listed
        self._server = Server(world, self._rate())
        self._history = History(world)
        self._observer = Observer(world, self._server, self._history)
        self._observer.sane = self._regime in ("calm", "sane")
        self._network = Network(world, self._server)
        self._programs: list[Program] = []
        self._dead: list[Process] = []
        self._leaving: list[Process] = []
        self._far = self._regime == "sane" and world.chance(0.25)
        self._things = [self._thing(number) for number in range(rng.choice([1, 2, 3] if self._far else [1, 1, 2, 3]))]
        self._ttl = max(thing.ttl for thing in self._things)
        self._chaos = rng.uniform(3.0, 10.0)
        if world.chance(0.3):
            monitor = self._server.accept(None)
            self._server.execute(monitor, [b"PSUBSCRIBE", b"*"])
        for _ in range(rng.choice([2, 3, 4])):
            world.after(rng.random() * 0.5, self._start)
        self._faults = Faults(
            world, self._network, self._server, self._observer, self._regime, self._ttl,
            self._live, self._crash, self._leave,
        )  # fmt: skip
        if self._far:  # a lease is worn away by its messages' way, and news are old when they come
            weather, how = self._network.weather, rng.choice(["long way", "late notices", "old notices"])
            weather.latency = rng.choice([0.01, 0.03, 0.06]) if how == "long way" else 0.002
            if how != "long way":
                weather.notice_late, weather.slowness = 0.6, (0.4 if how == "late notices" else 3.0) * self._ttl
            if how != "late notices":
                self._faults.stop_often()
        if self._regime == "calm":
            world.after(0.05, self._watch_closely)

    def _rate(self) -> float:
        return 1 + self._world.rng.uniform(-DRIFT, DRIFT)

    def _thing(self, number: int) -> Thing:
        rng = self._world.rng
        kind = rng.choice(["lock", "lock", "semaphore"])
        ttl = rng.choice([0.5, 1.0] if self._far else [0.4, 1.0, 2.0, 4.0, 10.0])
        return Thing(kind, f"name-{number}", ttl, rng.choice([1, 2, 3, 5]) if kind == "semaphore" else 1)

    def run(self) -> None:
        world = self._world
        try:
            world.go_on(self._chaos)
            if not world.violations:
                self._peace()
        finally:
            for program in self._programs:
                program.process.end()
        if not world.violations:
            self._judge()

    def _start(self, tasks: int | None = None) -> Program:
        world = self._world
        process = Process(world, len(self._programs) + 1, self._rate())
        program = Program(
            world, self._network, self._history, process, self._things, calm=self._regime == "calm", far=self._far
        )
        self._programs.append(program)
        world.note(process.name, "begins")
        rng = world.rng
        most = (5, 8) if self._far else (rng.choice([1, 2, 5]), rng.choice([2, 4, 8]))
        program.begin(most[0] if tasks is None else tasks, most[1])
        return program

    def _live(self) -> list[Process]:
        return [program.process for program in self._programs if program.process.alive]

    def _crash(self, process: Process, half_open: bool) -> None:
        self._history.close_dead()
        process.crash()
        self._history.crashed(process)
        self._dead.append(process)
        for wire in [wire for wire in self._network.wires if wire.process is process]:
            if half_open:
                wire.black_hole()
            else:
                wire.hang_up()
        self._again()

    def _leave(self, process: Process) -> None:
        """End *process* as `asyncio.run` ends a program that is interrupted."""
        if process not in self._leaving:
            self._leaving.append(process)
            process.leave()
            self._again()

    def _again(self) -> None:
        """Sometimes a supervisor starts another in its place."""
        if self._world.chance(0.7) and len(self._programs) < 10:
            self._world.after(self._world.rng.random(), self._start_in_chaos)

    def _start_in_chaos(self) -> None:
        if self._world.now < self._chaos:
            self._start()

    def _peace(self) -> None:
        """C4 and P13: when the faults have ended, everybody gets their turn, and nothing stays behind."""
        world = self._world
        for program in self._programs:
            program.closing = True
        self._faults.heal()
        for process in self._dead:
            for wire in [wire for wire in self._network.wires if wire.process is process]:
                self._network.forget_client(wire)
            for socket in self._server.sockets():
                outlet = socket.outlet
                if outlet is not None and getattr(outlet, "process", None) is process:
                    self._server.close(socket)
        world.note("world", "heals")
        # A process may ask for twice as long as another, and renew by hand for twice as long again.
        longest = 4 * self._ttl + self._faults.stepped
        waiters = sum(not task.done() for program in self._programs for task in program.process.tasks)
        healed = world.now
        world.after(longest + 3 * RECHECK, self._watch_for_idleness, {})
        world.go_on(healed + longest + 5 + waiters * (LONGEST_BODY + RECHECK), self._all_done)
        if world.violations:
            return
        if not self._all_done():
            world.violate(f"P13: {self._pending()} still wait {world.now - healed:.3f} s after all faults ended")
            return
        fresh = self._start(tasks=0)
        for thing in self._things:
            fresh.process.begin(fresh.visit(thing))
        begun = world.now
        world.go_on(begun + longest + 1, fresh.done)
        if world.violations:
            return
        if not fresh.done():
            world.violate(f"C4: a fresh client got not everything within {world.now - begun:.3f} s")
            return
        ended = world.now
        world.go_on(ended + 1.6)
        self._check_quiet()
        world.go_on(max(world.now, ended + 2 * longest + 1))
        self._check_server()

    def _watch_for_idleness(self, idle_since: dict[str, float]) -> None:
        """P13: nothing lies idle while somebody waits for it."""
        world = self._world
        for thing in self._things:
            waiting = sum(program.waiting.get(thing.base, 0) for program in self._programs if program.process.alive)
            if not waiting or self._observer.held(thing.base.encode()):
                idle_since.pop(thing.base, None)
            elif world.now - idle_since.setdefault(thing.base, world.now) > 2 * RECHECK:
                world.violate(f"P13: {thing.base} has been free for {2 * RECHECK} s, and {waiting} wait for it")
        if not self._all_done():
            world.after(0.1, self._watch_for_idleness, idle_since)

    def _watch_closely(self) -> None:
        """P7, W5: while nothing befalls, each grant is taken or undone at once, and each release hands over at once."""
        allowed = 0.05 + 25 * self._network.weather.latency
        for thing in self._things:
            if (odd := self._observer.unwanted(thing.base.encode(), allowed)) is not None:
                self._world.violate(f"P7: {odd}, though nothing befell")
        if self._world.now < self._chaos or not self._all_done():
            self._world.after(0.02, self._watch_closely)

    def _all_done(self) -> bool:
        return all(program.done() for program in self._programs if program.process.alive) and not any(
            process.alive for process in self._leaving
        )

    def _pending(self) -> str:
        return ", ".join(
            f"{program.process.name} ({sum(not task.done() for task in program.process.tasks)} tasks)"
            for program in self._programs
            if program.process.alive and not program.done()
        )

    def _check_quiet(self) -> None:
        for process in self._live():
            if not process.idle():
                self._world.violate(f"C4: {process.name} has not come to rest: {process.left()}")
        for wire in self._network.wires:
            if wire.process.alive:
                self._world.violate(f"C4: connection {wire.name} is still open")

    def _check_server(self) -> None:
        for text in check_residue(self._server.keys()):
            self._world.violate(text)
        for process in [program.process for program in self._programs]:
            for trouble in process.troubles:
                self._world.violate(f"{process.name}: {trouble}")

    def _judge(self) -> None:
        """C1 to C3, over what the programs recorded."""
        world, history = self._world, self._history.events
        sane = self._observer.sane
        world.met["stale writes refused"] += stale_writes(history)
        found = check_fencing(history) + check_linearizable(history, exclusive=sane) + check_ended(history)
        if sane:
            found += check_exclusion(history)
        for text in found:
            world.violate(text)
        world.met[f"runs with regime {self._regime}"] += 1
