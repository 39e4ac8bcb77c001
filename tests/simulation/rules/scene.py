"""Programs in the simulated world, with no mishaps but those that a check brings about: exact to the millisecond.

The engine and the scripts are the real ones; time is the world's, and every request is on record.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from aiolocks import Lock, Semaphore
from aiolocks._redis.scripts import Script
from tests.simulation.cluster import Cluster
from tests.simulation.requests import read, scripts, whole
from tests.simulation.run import governed
from tests.simulation.server import RawError, ServerSocket
from tests.simulation.stage import Stage
from tests.simulation.wire import Wire
from tests.simulation.workload import Program
from tests.simulation.world import World


@dataclass(slots=True)
class Visit:
    """One task that takes a name and holds it for a while."""

    task: "asyncio.Task[None] | None" = None
    began: float | None = None
    ended: float | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One run of a script, as the server saw it."""

    at: float
    verb: str
    args: dict[str, bytes]
    reply: Any


@final
@dataclass(slots=True)
class Scene:
    """See the module."""

    world: World
    stage: Stage
    kind: str
    requests: list[Request] = field(default_factory=list[Request])
    known: dict[bytes, Script] = field(default_factory=scripts)

    def program(self, *, channels: bool = True) -> Program:
        """Begin a process; without *channels* it may neither subscribe nor publish."""
        program = self.stage.program()
        if not channels:
            program.client.connection_pool.connection_kwargs["channels"] = False
        return program

    def take(self, program: Program, name: str, at: float, lasts: float, **options: Any) -> Visit:
        """Have a task of *program* ask for *name* at *at*, and hold it for so many seconds."""
        options = {"ttl": 4.0, **options}
        visit = Visit()

        async def go() -> None:
            await asyncio.sleep(at - self.world.now)
            make: Any = Lock if self.kind == "lock" else partial(Semaphore, limit=1)
            try:
                async with make(program.client, name, **options):
                    visit.began = self.world.now
                    await asyncio.sleep(lasts)
            except BaseException as error:
                visit.error = error
            visit.ended = self.world.now

        program.process.begin(go())
        visit.task = program.process.tasks[-1]
        return visit

    def cancel(self, program: Program, visit: Visit, at: float) -> None:
        assert visit.task is not None
        self.world.at(at, program.process.post, visit.task.cancel)

    def until(self, seconds: float) -> None:
        """Let time pass until then, with no promise broken."""
        self.world.go_on(seconds)
        assert self.world.violations == []

    def seen(self, verb: str, *, since: float = 0.0) -> list[Request]:
        return [request for request in self.requests if request.verb == verb and request.at >= since]

    def wires(self, program: Program, *, subscribed: bool = False) -> list[Wire]:
        """Return the connections of *program*: those with channels, or the others."""
        found = [wire for wire in self.stage.network.wires if wire.process is program.process]
        return [wire for wire in found if bool(wire.socket._pubsub) is subscribed]

    @property
    def cluster(self) -> Cluster:
        assert self.stage.cluster is not None
        return self.stage.cluster

    def move(self, slot: int, to: int) -> None:
        self.cluster.begin_move(slot, to)
        self.cluster.end_move(slot)

    def executed(self, session: ServerSocket, fields: list[bytes], reply: Any) -> None:
        script = self.known.get(fields[1]) if fields[0] in (b"EVAL", b"EVALSHA") else None
        if script is not None and not isinstance(reply, RawError):
            kind, _, verb = script.name.partition("/")
            if kind == self.kind:
                self.requests.append(Request(self.world.now, verb, read(script, fields).args, whole(verb, reply)))
        self.stage.observer.executed(session, fields, reply)

    def published(self, channel: bytes, message: bytes, subscribers: int) -> None:
        self.stage.observer.published(channel, message, subscribers)

    def unsubscribed(self, channels: list[bytes]) -> None:
        self.stage.observer.unsubscribed(channels)


@contextmanager
def playing(kind: str, nodes: int = 0) -> Iterator[Scene]:
    """Have a new world for a check, with one server or a Cluster of so many *nodes*."""
    world = World(0)
    with governed(world):
        scene = Scene(world, Stage(world, nodes), kind)
        (scene.stage.cluster or scene.stage.server).watcher = scene
        try:
            yield scene
        finally:
            for program in scene.stage.programs:
                program.process.end()
