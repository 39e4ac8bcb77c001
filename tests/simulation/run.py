"""One run: a world from a seed, chaos for some seconds, then peace, and whether all that was promised held."""

import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import final

from aiolocks import testing
from aiolocks._engine import renewal as _renewal
from aiolocks.testing import HistoryEvent, check_ended, check_exclusion, check_fencing, check_residue, stale_writes
from tests.support.garden import Garden

from .cluster import Cluster
from .cluster_faults import ClusterFaults
from .faults import Faults, Regime
from .history import History
from .modes import check_modes, in_modes
from .network import Network
from .observer import Observer, Seen
from .planting import instead
from .process import Process, lease_clock
from .server import Server
from .sites import Site, Sites
from .things import KINDS, MARKED_KINDS, Thing
from .versions import packages
from .workload import LONGEST_BODY, MARKED, Program
from .world import World

RECHECK = 1.0
"""Seconds: the longest re-check interval, which bounds how long a lost notice costs."""

DRIFT = 0.003
"""How much faster or slower than true time a clock may run; two of them stay within the library's allowance of 1 %."""

SERVERS = 3
"""Of which a majority must agree, where something is held by voting."""

PRIMARIES = 2
NODES = 4
"""Of a Cluster; those that are no primaries at first may take over from one."""


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    violations: list[str]
    met: Counter[str]
    trace: list[str] = field(default_factory=list[str])
    seconds: float = 0.0


def run(seed: int, *, tracing: bool = False, kinds: tuple[str, ...] = (), cluster: bool = False) -> Outcome:
    """Run one seed with some *kinds* of primitive. The same arguments have the same outcome and trace."""
    world = World(seed, tracing=tracing)
    kinds = kinds or (KINDS if seed < MARKED else MARKED_KINDS)
    if cluster:
        kinds = tuple(kind for kind in kinds if kind != "redlock")
    with governed(world), in_parts(seed), together(seed):
        _Run(world, kinds, cluster=cluster).run()
    return Outcome(seed, world.violations, world.met, world.trace, world.now)


@contextmanager
def in_parts(seed: int) -> Iterator[None]:
    """Have scripts look at one entry each, every third time: where few wait, parts are rare."""
    with ExitStack() as undo:
        if seed % 3 == 0:
            garden = Garden(undo)
            instead("W21-entries", "local MOST_LOOKED_AT = 1")(garden)
            instead("W21-holders", f"local MOST = {1 if seed < MARKED else 2}")(garden)  # pairs are revoked
            instead("W21-sessions", "local MOST_COUNTED = 1")(garden)
        yield


@contextmanager
def together(seed: int) -> Iterator[None]:
    """Have leases renewed long before they are due, to go with others, every other time: few are due at once."""
    with ExitStack() as undo:
        if seed % 2 == 0:
            Garden(undo).put(_renewal, "_EARLY", 10 * _renewal._EARLY)
        yield


@contextmanager
def governed(world: World) -> Iterator[None]:
    log = logging.getLogger("aiolocks")
    with ExitStack() as undo, world.governing():
        undo.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)
        for package in packages(world.seed):
            Garden(undo).put(package._engine.context.Context, "clock", staticmethod(lease_clock))
        yield


@final
class _Run:
    def __init__(self, world: World, kinds: tuple[str, ...], *, cluster: bool) -> None:
        rng = world.rng
        self._world = world
        self._regime: Regime = rng.choices(["calm", "sane", "steps", "loss"], [16, 62, 11, 11])[0]  # type: ignore[assignment]  # as listed
        if cluster and self._regime == "steps":  # its nodes have one clock
            self._regime = "sane"
        self._history = History(world)
        self._programs: list[Program] = []
        self._dead: list[Process] = []
        self._leaving: list[Process] = []
        self._far = self._regime == "sane" and world.chance(0.25)
        ttls = [0.5, 1.0] if self._far else [0.4, 1.0, 2.0, 4.0, 10.0]
        count = rng.choice([1, 2, 3] if self._far else [1, 1, 2, 3])
        self._things = [Thing.drawn(rng, kinds, f"name-{number}", ttls) for number in range(count)]
        self._ttl = max(thing.ttl for thing in self._things)
        self._chaos = rng.uniform(3.0, 10.0)
        voting = any(thing.kind == "redlock" for thing in self._things)
        self._cluster_faults: ClusterFaults | None = None
        sites = self._nodes() if cluster else [self._site(number) for number in range(SERVERS if voting else 1)]
        self._sites = Sites(world, self._history, sites)
        if world.chance(0.3):
            server = self._sites.all[0].server
            server.execute(server.accept(None), [b"PSUBSCRIBE", b"*"])
        for _ in range(rng.choice([2, 3, 4])):
            world.after(rng.random() * 0.5, self._start)
        if self._far:
            for site in self._sites.all:
                self._move_away(site, rng.choice(["long way", "late notices", "old notices"]))
        if self._regime == "calm":
            world.after(0.05, self._watch_closely)

    def _site(self, number: int) -> Site:
        server = Server(self._world, self._rate())
        return self._watched(server, self._observer(server), first=number == 0)

    def _observer(self, seen: Seen) -> Observer:
        observer = Observer(self._world, seen, self._history)
        observer.sane = self._regime in ("calm", "sane")
        return observer

    def _watched(self, server: Server, observer: Observer, *, first: bool) -> Site:
        """Return a server with its faults. Processes stop and crash by the first one's alone."""
        world, live = self._world, self._live if first else list
        network = Network(world, server)
        faults = Faults(world, network, server, observer, self._regime, self._ttl, live, self._crash, self._leave)
        return Site(server, observer, network, faults)

    def _nodes(self) -> list[Site]:
        """Make the nodes of a Cluster, over all of which one observer looks."""
        world, rate = self._world, self._rate()
        servers = [Server(world, rate) for _ in range(NODES)]
        cluster = Cluster(world, servers, PRIMARIES)
        observer = self._observer(cluster)
        sites = [self._watched(server, observer, first=server is servers[0]) for server in servers]
        self._cluster_faults = ClusterFaults(
            world, cluster, [site.network for site in sites], observer, self._regime,
            [base for thing in self._things for base in thing.bases],
        )  # fmt: skip
        return sites

    def _move_away(self, site: Site, how: str) -> None:
        """A lease is worn away by its messages' way, and news are old when they come."""
        weather = site.network.weather
        weather.latency = self._world.rng.choice([0.01, 0.03, 0.06]) if how == "long way" else 0.002
        if how != "long way":
            weather.notice_late, weather.slowness = 0.6, (0.4 if how == "late notices" else 3.0) * self._ttl
        if how != "late notices":
            site.faults.stop_often()

    def _rate(self) -> float:
        return 1 + self._world.rng.uniform(-DRIFT, DRIFT)

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
        networks = [site.network for site in self._sites.all]
        calm, cluster = self._regime == "calm", self._cluster_faults is not None
        versions = packages(world.seed)
        program = Program(
            world, networks, self._history, process, self._things, calm=calm, far=self._far, cluster=cluster,
            package=world.rng.choice(versions) if len(versions) > 1 else versions[0],
        )  # fmt: skip
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
        for wire in [wire for wire in self._sites.wires() if wire.process is process]:
            (wire.black_hole if half_open else wire.hang_up)()
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
        if self._cluster_faults is not None:
            self._cluster_faults.heal()
        self._sites.heal(self._dead)
        world.note("world", "heals")
        # A process may ask for twice as long as another, and renew by hand for twice as long again.
        longest = 4 * self._ttl + self._sites.stepped()
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
        answered: dict[object, float] = {}
        world.go_on(ended + longest, lambda: not self._undoing(answered))
        world.go_on(world.now + 1.6)
        self._check_quiet()
        world.go_on(max(world.now, ended + 2 * longest + 1))
        self._check_server()

    def _watch_for_idleness(self, idle_since: dict[str, float]) -> None:
        """P13: nothing lies idle while somebody waits for it."""
        world = self._world
        for thing in self._things:
            waiting = sum(program.waiting.get(thing.base, 0) for program in self._programs if program.process.alive)
            if not waiting or any(map(self._sites.held, thing.bases)):
                idle_since.pop(thing.base, None)
            elif world.now - idle_since.setdefault(thing.base, world.now) > 2 * RECHECK:
                world.violate(f"P13: {thing.base} has been free for {2 * RECHECK} s, and {waiting} wait for it")
        if not self._all_done():
            world.after(0.1, self._watch_for_idleness, idle_since)

    def _watch_closely(self) -> None:
        """P7, W5: while nothing befalls, each grant is taken or undone at once, and each release hands over at once."""
        allowed = 0.05 + 25 * max(site.network.weather.latency for site in self._sites.all)
        for thing in self._things:
            asking = {program.process for program in self._programs if thing.in_parts and program.asking[thing.base]}
            for base, site in itertools.product(thing.bases, self._sites.all):
                odd = site.observer.unwanted(base.encode(), allowed, asking.__contains__)
                if odd is not None:
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

    def _undoing(self, answered: dict[object, float]) -> bool:
        """Whether an undo or question waits for a link from before the healing. *answered*: when its request was."""
        loops = {process.loop: process for process in self._live()}
        sessions = [one for of in packages(self._world.seed) for one in of._grantors.session._sessions.values()]
        contexts = [session.context for session in sessions if session.context.loop in loops]
        for context in contexts:
            now = loops[context.loop].boottime()
            for release in context.undos.under_way.values():  # W14
                request = getattr(release, "request", None) or release._request  # the older version's name
                later = release._answered_at != float("inf") and not request.unanswered
                if now < (answered.setdefault(release, now) if later else release.begun) + request.terms.ttl:
                    return True
        return any(context._uses for context in contexts)

    def _check_quiet(self) -> None:
        for process in self._live():
            if left := process.left():
                self._world.violate(f"C4: {process.name} has not come to rest: {left}")
        for wire in self._sites.wires():
            if wire.process.alive:
                self._world.violate(f"C4: connection {wire.name} is still open")

    def _check_server(self) -> None:
        for site in self._sites.all:
            for text in check_residue(site.server.keys()):
                self._world.violate(text)
        for process in [program.process for program in self._programs]:
            for trouble in process.troubles:
                self._world.violate(f"{process.name}: {trouble}")

    def _judge(self) -> None:
        world, history = self._world, self._history.events
        world.met["stale writes refused"] += stale_writes(history)
        judge(world, history, sane=self._sites.sane)
        for text in check_ended(history):
            world.violate(text)
        world.met[f"runs with regime {self._regime}"] += 1


def judge(world: World, history: list[HistoryEvent], *, sane: bool) -> None:
    """C1 to C3, over what the programs recorded."""
    modes = [event for event in history if in_modes(event.name) or event.event == "killed"]
    others = [event for event in history if not in_modes(event.name)]
    found = check_fencing(history) + testing.check_linearizable(others, exclusive=sane) + check_modes(modes, sane=sane)
    for text in found + (check_exclusion(others) if sane else []):
        world.violate(text)
