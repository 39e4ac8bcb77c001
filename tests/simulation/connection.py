"""redis-py's end of the simulated network: a connection whose address is a process, and whose bytes go through it."""

import asyncio
from typing import Any

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import AbstractConnection

from .cluster import FIRST_PORT
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


class NodeConnection(SimulatedConnection):
    """The same to a node of a Cluster, which is told by its port."""

    def __init__(self, *, networks: list[Network], port: int, **options: Any) -> None:
        super().__init__(network=networks[port - FIRST_PORT], **options)


def cluster_client(networks: list[Network], process: Process, host: str, *, channels: bool) -> RedisCluster:
    """Return redis-py's client of the nodes that are reached by these *networks*."""
    nodes = [ClusterNode(host, FIRST_PORT + number) for number in range(len(networks))]
    client: RedisCluster = RedisCluster(startup_nodes=nodes)
    client.nodes_manager.connection_kwargs = {
        "connection_class": NodeConnection, "networks": networks, "process": process, "channels": channels,
        "protocol": 2, "driver_info": None, "encoding": "utf-8", "encoding_errors": "strict", "decode_responses": False,
    }  # fmt: skip
    return client
