"""Programs in the simulated world, with no mishaps but those that a check brings about: exact to the millisecond.

The engine and the scripts are the real ones; time is the world's, and every request is on record.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

from aiolocks import Lease, Lock, Semaphore
from aiolocks._redis.scripts import Script
from tests.simulation.cluster import Cluster
from tests.simulation.requests import read, scripts, whole
from tests.simulation.run import governed
from tests.simulation.scenarios import Stage
from tests.simulation.server import RawError, ServerSocket
from tests.simulation.wire import Wire
from tests.simulation.workload import Program
from tests.simulation.world import World


class BrokenPromiseError(AssertionError):
    """The promises that the observer saw broken."""


@dataclass(slots=True)
class Visit:
    """One task that takes a name and holds it for a while."""

    task: "asyncio.Task[None] | None" = None
    lease: Lease | None = None
    began: float | None = None
    ended: float | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One run of a script, as the server saw it."""

    at: float
    verb: str
    args: dict[str, bytes]
    more: list[bytes]
    reply: Any
    socket: ServerSocket


@final
@dataclass(slots=True)
class Scene:
    """See the module."""

    world: World
    stage: Stage
    kind: str
    requests: list[Request] = field(default_factory=list[Request])
    known: dict[bytes, Script] = field(default_factory=scripts)
    subscriptions_vanish: bool = False
    """Whether the server forgets each subscription that it has confirmed."""
    pause: float = 0.0
    """Seconds between two replies on one connection."""
    when_run: Callable[[str], None] = lambda verb: None
    """Called with the verb of each script that was asked for, whatever was answered."""

    def program(self, *, channels: bool = True) -> Program:
        """Begin a process; without *channels* it may neither subscribe nor publish."""
        program = self.stage.program()
        if not channels:
            program.client.connection_pool.connection_kwargs["channels"] = False
        return program

    def take(
        self,
        program: Program,
        name: str,
        at: float,
        lasts: float | Callable[[], bool],
        *,
        ttl: float = 4.0,
        permits: int = 1,
        limit: int = 1,
    ) -> Visit:
        """Have a task of *program* ask for *name* at *at*, and hold it for so many seconds, or until that is true."""
        visit = Visit()

        async def go() -> None:
            await asyncio.sleep(at - self.world.now)
            if self.kind == "lock":
                hold = Lock(program.client, name, ttl=ttl).hold()
            else:
                hold = Semaphore(program.client, name, limit, ttl=ttl).hold(permits=permits)
            try:
                async with hold as visit.lease:
                    visit.began = self.world.now
                    await self.linger(lasts)
            except BaseException as error:
                visit.error = error
            visit.ended = self.world.now

        program.process.begin(go())
        visit.task = program.process.tasks[-1]
        return visit

    async def linger(self, lasts: float | Callable[[], bool]) -> None:
        if callable(lasts):
            while not lasts():
                await asyncio.sleep(0.001)
        else:
            await asyncio.sleep(lasts)

    def cancel(self, program: Program, visit: Visit, at: float) -> None:
        assert visit.task is not None
        self.world.at(at, program.process.post, visit.task.cancel)

    def until(self, seconds: float) -> None:
        """Let time pass until then.

        Raises:
            BrokenPromiseError: The observer saw that a promise was broken meanwhile.
        """
        self.world.go_on(seconds)
        if self.world.violations:
            raise BrokenPromiseError(self.world.violations)

    def seen(self, verb: str, *, since: float = 0.0, before: float = float("inf")) -> list[Request]:
        """Return the runs of that verb's script, oldest first."""
        return [request for request in self.requests if request.verb == verb and since <= request.at < before]

    def wires(self, program: Program, *, subscribed: bool) -> list[Wire]:
        """Return the connections of *program*: those with channels, or the others."""
        found = [wire for wire in self.stage.network.wires if wire.process is program.process]
        return [wire for wire in found if bool(wire.socket._pubsub) is subscribed]

    def value(self, key: bytes) -> Any:
        """Return what is written under *key* now, or None."""
        item = self.stage.server.database().get(key)
        return None if item is None else item.value

    @property
    def cluster(self) -> Cluster:
        assert self.stage.cluster is not None
        return self.stage.cluster

    def move(self, slot: int, to: int) -> None:
        """Move a slot of the Cluster at once."""
        self.cluster.begin_move(slot, to)
        self.cluster.end_move(slot)

    def delete(self, *keys: bytes) -> None:
        """Delete keys as an operator might."""
        for key in keys:
            self.stage.server.database().pop(key, None)

    def executed(self, session: ServerSocket, fields: list[bytes], reply: Any) -> None:
        """Put a request on record."""
        script = self.known.get(fields[1]) if fields[0] in (b"EVAL", b"EVALSHA") else None
        if script is not None:
            self.when_run(script.name.partition("/")[2])
        if script is not None and not isinstance(reply, RawError):
            asked = read(script, fields)
            kind, _, verb = script.name.partition("/")
            if kind == self.kind:
                self.requests.append(Request(self.world.now, verb, asked.args, asked.more, whole(verb, reply), session))
        for wire in self.stage.network.wires:
            if wire.socket is session and self.pause:
                wire._down.delay(max(wire._down._last - self.world.now, 0.0) + self.pause)
        if fields[0] == b"SUBSCRIBE" and self.subscriptions_vanish:
            for channel in fields[1:]:
                self.stage.server.fake.subscribers[channel].discard(session)
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
