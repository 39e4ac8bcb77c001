"""One connection between a process and the server: its two ends, and the bytes on their way.

It carries bytes as TCP does: in order within each direction. So nothing is lost from the middle of a stream, but a
stream may stop for good, for one side or for both.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from aiolocks.testing._resp import Scanner

from .process import Process
from .requests import words_of
from .server import ServerSocket

if TYPE_CHECKING:
    from .network import Network


class _Pipe:
    """One direction of a connection."""

    def __init__(self, network: "Network", deliver: Callable[[bytes], None]) -> None:
        self._network = network
        self._deliver = deliver
        self._last = 0.0
        self._carries = True
        self._kept: list[bytes] | None = None

    def send(self, data: bytes) -> None:
        world, weather = self._network.world, self._network.weather
        if len(data) > 1 and world.chance(weather.in_pieces):
            world.meet("message in pieces")
            cut = world.rng.randrange(1, len(data))
            self._later(data[:cut])
            self._later(data[cut:])
        else:
            self._later(data)

    def delay(self, seconds: float) -> None:
        self._last = max(self._last, self._network.world.now + seconds)

    def keep(self) -> None:
        """Let nothing through until `let_go`, and lose nothing: TCP sends again."""
        if self._kept is None:
            self._kept = []

    def let_go(self) -> None:
        kept, self._kept = self._kept, None
        for data in kept or ():  # at once: what was sent behind it may be due any moment
            self._arrive(data)

    def swallow(self) -> None:
        """Carry nothing any more, and tell nobody."""
        self._carries = False
        self._kept = None

    def _later(self, data: bytes) -> None:
        self._last = max(self._last, self._network.world.now + self._network.delay())
        self._network.world.at(self._last, self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if self._kept is not None:
            self._kept.append(data)
        elif self._carries:
            self._deliver(data)


@final
class Wire:
    """One connection: a transport at the process, a socket at the server, two pipes between."""

    def __init__(self, network: "Network", process: Process, *, channels: bool) -> None:
        self.network = network
        self.process = process
        self.transport = Transport(self)
        self.socket: ServerSocket = network.server.accept(self, channels=channels)
        self.name = f"{process.name}.{self.socket.number}"
        self.broken = False
        """One side may never learn that the other has gone."""
        self._up = _Pipe(network, self._at_server)
        self._down = _Pipe(network, self._at_process)
        self._scanner = Scanner()
        self._held: list[list[bytes]] | None = None
        self._to_close = False
        self._mute = False

    def write(self, data: bytes) -> None:
        if self.process.alive:
            self._up.send(data)

    def reply(self, data: bytes) -> None:
        network = self.network
        if self.socket._pubsub and network.world.chance(network.weather.notice_late):
            network.world.meet("late notice")
            self._down.delay(network.world.rng.random() * network.weather.slowness)
        self._down.send(data)

    def hang_up(self) -> None:
        """The process closes its end; what is on its way may still come, and the server hears of it later."""
        network = self.network
        network.wires.pop(self, None)
        if network.world.chance(0.3):
            self._up.swallow()
        if not self.broken:
            network.world.after(network.delay() + network.delay(), self._close_at_server)

    def cut(self, nothing_more: str = "") -> None:
        """Break it: both ends are told in time, and what is on its way comes or not."""
        world, network = self.network.world, self.network
        if world.chance(0.5) or nothing_more == "from the process":
            self._up.swallow()
            self._mute = True
        if world.chance(0.5) or nothing_more:
            self._down.swallow()
        world.after(2 * network.delay(), self._close_at_server)
        world.after(2 * network.delay(), self.process.post, self.transport.lost, ConnectionResetError("cut"))

    def black_hole(self) -> None:
        self.broken = True
        self._up.swallow()
        self._down.swallow()

    def deafen(self) -> None:
        """Break the way back alone: the server goes on hearing the process, and talks to nobody."""
        self.broken = True
        self._down.swallow()

    def hold_requests(self, request: list[bytes], seconds: float) -> None:
        """Keep *request* and those behind it from the server, even if the process hangs up meanwhile."""
        self._held = [request]
        self.network.holding[self] = None
        self.network.world.after(seconds, self.let_go)

    def cut_off(self, seconds: float) -> None:
        """Let nothing through for so long, in either direction."""
        self._held = self._held or []
        self._down.keep()
        self.network.holding[self] = None
        self.network.world.after(seconds, self.let_go)

    def let_go(self) -> None:
        held, self._held = self._held, None
        self._down.let_go()
        self.network.holding.pop(self, None)
        for request in held or ():
            self._pass_on(request)
        if self._to_close:
            self._close_at_server()

    def closed_by_server(self) -> None:
        self.network.server.close(self.socket)
        self.network.world.after(self.network.delay(), self.process.post, self.transport.lost, None)

    def _close_at_server(self) -> None:
        if self._held is None:
            self.network.server.close(self.socket)
        else:
            self._to_close = True

    def _at_server(self, data: bytes) -> None:
        self.network.server.when_running(lambda: self._hear(data))

    def _hear(self, data: bytes) -> None:
        if self.socket.gone:
            return
        for message in self._scanner.feed(data):
            self._pass_on(words_of(message))

    def _pass_on(self, request: list[bytes]) -> None:
        if self._held is not None:
            self._held.append(request)
        elif not (self.socket.gone or self._mute):
            self.network.request(self, request)

    def _at_process(self, data: bytes) -> None:
        self.process.post(self.transport.received, data)


@final
class Transport(asyncio.Transport):
    """The process's end of a connection, as asyncio shows it."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire
        self._protocol: Any = None
        self._closing = False
        self._closed = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._wire.write(bytes(data))

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._wire.hang_up()
            asyncio.get_running_loop().call_soon(self.lost, None)

    def abort(self) -> None:
        self.close()

    def received(self, data: bytes) -> None:
        if not self._closing:
            protocol = self._protocol
            if isinstance(protocol, asyncio.BufferedProtocol):
                for at in range(0, len(data), 4096):
                    piece = data[at : at + 4096]
                    memoryview(protocol.get_buffer(len(piece)))[: len(piece)] = piece
                    protocol.buffer_updated(len(piece))
            else:
                protocol.data_received(data)

    def lost(self, error: Exception | None) -> None:
        self._closing = True
        if not self._closed:
            self._closed = True
            self._wire.network.wires.pop(self._wire, None)
            self._protocol.connection_lost(error)
