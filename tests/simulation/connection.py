"""redis-py's end of the simulated network: a connection whose address is a process, and whose bytes go through it."""

import asyncio
from typing import Any

from redis.asyncio.connection import AbstractConnection

from .network import Network
from .process import Process


class SimulatedConnection(AbstractConnection):
    """redis-py's connection, whose bytes go through the simulated network."""

    def __init__(self, *, network: Network, process: Process, host: str, channels: bool = True, **options: Any) -> None:
        self._network = network
        self._process = process
        self._host = host
        self._channels = channels
        super().__init__(**options)

    def repr_pieces(self) -> list[tuple[str, Any]]:
        return [("host", self._host)]

    def _host_error(self) -> str:
        return self._host

    async def _connect(self) -> None:
        transport = await self._network.connect(self._process, channels=self._channels)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._reader, self._writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)
