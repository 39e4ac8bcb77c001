"""The network between the processes and the server: late, in pieces, twice, or never, as the seed decides.

There is no order between its connections; what happens within one is in `wire`.
"""

import asyncio
from dataclasses import dataclass
from typing import final

from .process import Process
from .server import Server
from .wire import Transport, Wire
from .world import World


@dataclass(slots=True)
class Weather:
    """How likely each mishap is, per message or per attempt to connect. All zero: a good network."""

    latency: float = 0.0005
    slow: float = 0.0
    slowness: float = 0.5
    notice_late: float = 0.0
    in_pieces: float = 0.0
    refused: float = 0.0
    swallowed: float = 0.0
    request_lost: float = 0.0
    reply_lost: float = 0.0
    reply_swallowed: float = 0.0
    request_held: float = 0.0
    held_for: float = 5.0
    repeated: float = 0.0
    script_flush: float = 0.0


@final
class Network:
    """All connections, and what befalls them."""

    def __init__(self, world: World, server: Server) -> None:
        self.world = world
        self.server = server
        self.weather = Weather()
        self.wires: dict[Wire, None] = {}
        self.holding: dict[Wire, None] = {}
        self.cut_off: set[Process] = set()
        self._healed = False

    def delay(self) -> float:
        rng, weather = self.world.rng, self.weather
        delay = weather.latency * (0.5 + rng.expovariate(1.0))
        if weather.slow and rng.random() < weather.slow:
            self.world.meet("slow message")
            delay += rng.random() * weather.slowness
        return delay

    async def connect(self, process: Process, *, channels: bool) -> Transport:
        """Return the process's end of a new connection; takes a round trip."""
        world, weather = self.world, self.weather
        refused = world.chance(weather.refused)
        swallowed = world.chance(weather.swallowed)
        await asyncio.sleep(2 * self.delay())
        if not process.alive:
            raise OSError("no network in the afterlife")
        if swallowed or process in self.cut_off:
            world.meet("connecting swallowed")
            await asyncio.sleep(1000)
        if refused or self.server.down:
            world.meet("connecting refused")
            raise ConnectionRefusedError("refused")
        wire = Wire(self, process, channels=channels)
        self.wires[wire] = None
        return wire.transport

    def partition(self, process: Process, seconds: float) -> None:
        """Let nothing through between *process* and the server for so long."""
        self.cut_off.add(process)
        self.world.after(seconds, self.cut_off.discard, process)
        for wire in [wire for wire in self.wires if wire.process is process]:
            if self.world.chance(0.5):
                wire.cut_off(seconds)
            else:
                wire.black_hole()

    def request(self, wire: Wire, fields: list[bytes]) -> None:
        """A request has come to the server: see what becomes of it and of its reply."""
        world, weather = self.world, self.weather
        if world.chance(weather.script_flush):
            world.meet("SCRIPT FLUSH")
            self.server.flush_scripts()
        if world.chance(weather.request_lost):
            world.meet("request lost")
            wire.cut(nothing_more="from the process")
            return
        if world.chance(weather.request_held):
            world.meet("requests held")
            wire.hold_requests(fields, world.rng.random() * weather.held_for)
            return
        if world.chance(weather.repeated):
            world.meet("request repeated")
            world.after(self.delay() + (world.rng.random() * 8 if world.chance(0.5) else 0.0), self._again, fields)
        if world.chance(weather.reply_swallowed):
            world.meet("way back swallowed")
            wire.deafen()
        elif world.chance(weather.reply_lost):
            world.meet("reply lost")
            wire.cut(nothing_more="from the server")
        self.server.execute(wire.socket, fields)

    def end_server(self) -> None:
        """End the server as a crash does: connections and loaded scripts are gone, and none is accepted."""
        self.server.down = True
        for wire in list(self.wires):
            wire.closed_by_server()
        for socket in self.server.sockets():
            self.server.close(socket)
        self.server.flush_scripts()

    def heal(self) -> None:
        self.weather = Weather(latency=self.weather.latency)
        self._healed = True
        self.cut_off.clear()
        for wire in list(self.holding):
            wire.let_go()

    def _again(self, fields: list[bytes]) -> None:
        def run() -> None:
            if self._healed:
                return
            ghost = self.server.accept(None)
            self.server.execute(ghost, fields)
            self.server.close(ghost)

        if fields[0].upper() in (b"EVAL", b"EVALSHA"):
            self.server.when_running(run)
