"""The servers that have the keys: one, or the primaries of a Cluster, each with its own client.

A Cluster is read without redis-py's Cluster client. That client asks one primary for the list of commands, and gives up
if this primary is dead, although the others could answer for their names.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

from redis.exceptions import AskError, RedisError, ResponseError

from .._core.keys import SLOTS, slot_of
from .._core.untyped import untyped
from .._redis.clients import pool_of
from ._arguments import Unusable
from ._connect import PATIENCE, REFUSALS, answering, is_away, node_of, ping, place_of

_PRIMARY_TIMEOUT = 0.6 * PATIENCE
"""Timeout for the first answer of each primary of a Cluster: `watch` has `PATIENCE` for that and for a refresh."""

_T = TypeVar("_T")
_Command = tuple[Any, ...]
_Address = tuple[str, int]


@final
@dataclass(frozen=True, slots=True)
class Primaries:
    """The servers that have the keys.

    Attributes:
        nodes: A client of each server that answers.
        missing: The addresses of the servers that do not answer.
    """

    nodes: Sequence[Any]
    missing: Sequence[str] = ()
    _url: str = ""
    _owners: Sequence[_Address] = ()
    """The address of the primary of each slot, on a Cluster."""
    _clients: dict[_Address, Any] = field(default_factory=dict[_Address, Any])
    """The client of each address that answers."""

    def at(self, key: bytes) -> Any | None:
        """Return the client of the server that has *key*, or None if it does not answer."""
        return self._clients.get(self._owners[slot_of(key)]) if self._owners else self.nodes[0]

    def require(self, key: bytes) -> None:
        """Raise Unusable if the server that has *key* does not answer."""
        if self.at(key) is None:
            raise Unusable(f"{_text(self._owners[slot_of(key)])}, which has this name, does not answer")

    def grouped(self, things: Iterable[_T], key: Callable[[_T], bytes]) -> list[tuple[Any | None, list[_T]]]:
        """Group *things* by the client of the server that has their *key*, or by None if it does not answer."""
        groups = dict[int, tuple[Any | None, list[_T]]]()
        for thing in things:
            node = self.at(key(thing))
            groups.setdefault(id(node), (node, []))[1].append(thing)
        return list(groups.values())

    async def answers(self, node: Any, commands: Sequence[_Command]) -> list[Any]:
        """Send *commands* to *node* in one pipeline, and return the answers.

        If a key has the wrong type for its command, the answer is the error. If its slot has moved or is moving, the
        command is sent to the node that has it.
        """
        if not commands:
            return []
        answers = await _pipelined(node, commands)
        elsewhere = dict[_Address, list[int]]()
        for at, answer in enumerate(answers):
            if isinstance(answer, AskError) and self._url:  # a MovedError too
                moved: Any = answer  # redis-py has no types for it
                elsewhere.setdefault((moved.host, moved.port), []).append(at)
        for address, places in elsewhere.items():
            async with node_of(self._url, *address) as other:
                # Without ASKING, a node refuses the keys of a slot that is still moving to it.
                asked = [command for at in places for command in (("ASKING",), commands[at])]
                for at, answer in zip(places, (await _pipelined(other, asked))[1::2], strict=True):
                    answers[at] = answer
        for answer in answers:
            if isinstance(answer, RedisError) and not _of_another_type(answer):
                raise answer
        return answers


@asynccontextmanager
async def primaries(url: str) -> AsyncGenerator[Primaries]:
    """Yield the servers that have the keys.

    Raises:
        Unusable: The server cannot be reached, now or later, refuses the credentials, or is one node of a Cluster.
    """
    if url.startswith("memory:"):
        raise Unusable("memory:// exists only in its own process; give the --url of a Redis")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(answering(url, place_of(url), ", or correct --url"))
        if "+cluster://" in url:
            yield await _of_cluster(url, client, stack)
        else:
            await _refuse_a_clusters_node(client, url)
            yield Primaries([client])


async def _of_cluster(url: str, client: Any, stack: AsyncExitStack) -> Primaries:
    """Return the primaries of the Cluster at *url*; *stack* closes their clients. *client* is not asked."""
    startup = [(str(node.host), int(node.port)) for node in untyped(pool_of(client)).startup_nodes.values()]
    owners = await _owners(url, startup, stack)
    addresses = sorted(set(owners), key=_text)
    clients = {address: await stack.enter_async_context(node_of(url, *address)) for address in addresses}
    silent = await asyncio.gather(*map(_does_not_answer, clients.values()))
    missing = [address for address, is_silent in zip(addresses, silent, strict=True) if is_silent]
    for address in missing:
        del clients[address]
    return Primaries(list(clients.values()), list(map(_text, missing)), url, owners, clients)


async def _owners(url: str, startup: Sequence[_Address], stack: AsyncExitStack) -> list[_Address]:
    """Return the primary of each slot, from the first node of *startup* that answers. *stack* awaits the others."""
    asking = [asyncio.ensure_future(_owners_by(url, address)) for address in startup]
    # The others are not cancelled: redis-py may not close a connection that is cancelled while it is being made.
    stack.push_async_callback(_wait_for, asking)
    for answer in asyncio.as_completed(asking):
        try:
            return await answer
        except (*REFUSALS, OSError, Unusable):
            continue  # another node may know
    return await asking[0]  # which raises


async def _wait_for(tasks: Sequence[asyncio.Future[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)  # an error that is never read would be logged


async def _owners_by(url: str, asked_at: _Address) -> list[_Address]:
    async with asyncio.timeout(PATIENCE), node_of(url, *asked_at) as node:
        asked: Any = node  # redis-py's types for it are partial
        ranges = await asked.execute_command("CLUSTER", "SLOTS")
    owners = dict[int, _Address]()
    for first, last, (host, port, *_), *_ in ranges:
        name = host.decode() if isinstance(host, bytes) else host
        owners |= dict.fromkeys(range(first, last + 1), (name or asked_at[0], int(port)))  # "": the host we asked
    if len(owners) < SLOTS:
        raise Unusable(f"of the Cluster at {place_of(url)}, {SLOTS - len(owners):,} slots have no primary")
    return [owners[slot] for slot in range(SLOTS)]


def _text(address: _Address) -> str:
    return f"{address[0]}:{address[1]}"


async def _pipelined(node: Any, commands: Sequence[_Command]) -> list[Any]:
    pipeline = node.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    answers: list[Any] = await pipeline.execute(raise_on_error=False)
    return answers


def _of_another_type(error: RedisError) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")


async def _refuse_a_clusters_node(client: Any, url: str) -> None:
    """Raise Unusable if the server at *url* is one node of a Cluster, which has only some of the keys."""
    await ping(client)
    try:
        info: dict[str, Any] = await client.info("cluster")
    except ResponseError:
        return  # without the right to INFO
    if info.get("cluster_enabled"):
        scheme, _, _ = url.partition("://")
        cluster = f"{'rediss' if scheme == 'rediss' else 'redis'}+cluster://"
        raise Unusable(f"{place_of(url)} is one node of a Cluster: give --url {cluster}HOST:PORT for all of it")


async def _does_not_answer(node: Any) -> bool:
    try:
        async with asyncio.timeout(_PRIMARY_TIMEOUT):
            await ping(node)
    except (*REFUSALS, OSError) as error:
        if not is_away(error):
            raise
        return True
    return False
