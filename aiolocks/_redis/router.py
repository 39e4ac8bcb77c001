"""The nodes of a Redis Cluster: a pipeline to each that is needed, and which one a name's slot belongs to.

What is known of the slots is a guess that is good nearly always: a node that does not have a slot any more says who
has, and has not run what it was asked. So the same call goes there, as it does after NOSCRIPT; but one that was given
up never does, as its undo may be ahead of it by then. What is known is asked anew whenever it was wrong, and when a
link is lost or refused. Nobody waits for that: with nothing known yet, any node will do.

A slot that is being moved is answered for by its old node as long as the key is there, then by ASK: the new node is
asked that once, with the script, as it may not know it. Where some keys of a name have gone and others not, both say
TRYAGAIN, which is ridden out like CLUSTERDOWN.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast, final

from redis.asyncio.cluster import NodesManager
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AskError, MovedError, NoPermissionError, ResponseError

from .._core.answers import NotNowError, RidingOut, recognized
from .._core.keys import SLOTS, slot_of
from .._core.replies import UNREADABLE, unreadable
from .clients import warn_once
from .connection import Connection, ConnectionCancelled, connected
from .pipeline import CallReceiver, PendingCall, Pipeline
from .scripts import Arguments, Command, PlainCommand

Address = tuple[str, int]

_REFRESH_EVERY = 0.2
"""Seconds from one question for the slots to the next at least."""

_PATIENCE = 1.0
"""Seconds to wait for the answer; then another node is asked."""

_MOST_REDIRECTS = 5
"""Of one call; then its caller asks again, after a while. Two nodes may send it to each other during a failover."""

_NOT_ASKED_FOR = 10.0
"""Seconds for which no call goes along with ASKING, after the right to that was found missing."""

_SLOTS = PlainCommand("CLUSTER", "SLOTS")
_SHARDED = PlainCommand("PUBSUB", "SHARDNUMSUB")
"""Known from Redis 7.0 on, as sharded channels are."""


@final
class Node:
    """One node of a Cluster, reached as the user's client would: an `Endpoint`."""

    fails_over = True

    def __init__(
        self, manager: NodesManager, address: Address, on_unreachable: Callable[[Address], None],
        greet: Callable[[Any, Address], Awaitable[None]],
    ) -> None:  # fmt: skip
        """*greet* is called with each new connection, ahead of whatever is sent over it."""
        self._manager = manager
        self.address = address
        self._on_unreachable = on_unreachable
        self._greet = greet

    async def connect(self) -> Any:
        terms: dict[str, Any] = dict(self._manager.connection_kwargs)
        make = terms.pop("connection_class")
        for other in _NOT_OURS:
            terms.pop(other, None)
        host, port = self.address
        connection = make(**terms, host=host, port=port)

        async def connect() -> None:
            await connection.connect()
            await self._greet(connection, self.address)

        return await connected(connection, connect)

    def opened(self, connection: Any, link: Connection) -> None:
        pass

    def unreachable(self) -> None:
        self._on_unreachable(self.address)

    def retry(self) -> Retry:
        return Retry(NoBackoff(), 0)  # the outages that a client would ride out are ridden out in any case

    def close(self) -> None:
        pass

    def detach_in_fork(self) -> None:
        pass


_NOT_OURS = (
    "max_connections", "response_callbacks", "redis_connect_func", "oss_cluster_maint_notifications_handler",
    "maint_notifications_config",
)  # fmt: skip
"""What redis-py passes to its nodes, and not to a connection; or what makes it one that reads from replicas, or that
tells the user's client of what is going on."""


@final
class Router:
    """Of one client and one event loop; stands where one server has its `Pipeline`."""

    def __init__(
        self, manager: NodesManager, loop: asyncio.AbstractEventLoop, clock: Callable[[], float],
        on_lost: Callable[[], None], on_connected: Callable[[], None],
    ) -> None:  # fmt: skip
        self._manager = manager
        self.loop = loop
        self._clock = clock
        self._on_lost = on_lost
        self._on_connected = on_connected
        self.on_changed: Callable[[], None] = lambda: None
        """Called when slots have changed hands: once for all that are found out in one turn of the loop."""
        self.changed: set[int] = set()
        """Which slots these are; who is told takes them."""
        self.sharded = True
        """Whether the nodes have channels of their own, so that a message need not go to all of them."""
        self._heard_of_channels = False
        self._asks_from = -math.inf
        """From when on calls may go to where their slot is being moved to."""
        self._pipelines: dict[Address, Pipeline] = {}
        self._owners: list[Address | None] = [None] * SLOTS
        self._ids: dict[Address, bytes] = {}
        """What the nodes call themselves."""
        self._startup: list[Address] = [(node.host, int(node.port)) for node in manager.startup_nodes.values()]
        self._known = list(self._startup)
        """Whom to ask for the slots: the first, unless it was just in vain."""
        self._routes: dict[int, SlotRoute] = {}
        self._refreshing = False
        self._refreshed_at = -_REFRESH_EVERY
        self._gone: set[Address] = set()
        """To whom the link was lost, and there has been none since."""
        self._in_vain = 0
        """How often in a row the slots have been asked for in vain: when each node was, only what is new leads on."""
        self._doubted: Address | None = None
        """Who has said last that it cannot serve its slots: others may know who can."""
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Handle | None = None
        self._open = False

    def route(self, base: bytes) -> "SlotRoute":
        """Return the way to whoever has the keys that begin with *base*."""
        slot = slot_of(base)
        route = self._routes.get(slot)
        if route is None:
            route = self._routes[slot] = SlotRoute(self, slot)
        return route

    def at(self, slot: int) -> Pipeline:
        """Return the pipeline to the node that has *slot*, as far as that is known."""
        owner = self._owners[slot]
        self._open = True
        if owner is None:
            self.refresh()
            owner = self._known[0]
        return self._pipelines.get(owner) or self.node(owner)

    def node(self, address: Address) -> Pipeline:
        """Return the pipeline to the node at *address*."""
        pipeline = self._pipelines.get(address)
        if pipeline is None:
            node = Node(self._manager, address, self._unreachable, self._greet)
            lost, connected = partial(self._lost, address), partial(self._connected, address)
            pipeline = Pipeline(node, self.loop, self._clock, lost, connected)
            self._pipelines[address] = pipeline
        return pipeline

    def retry_policy(self, *, once: bool = False) -> Retry | RidingOut:
        """Return what an outage is ridden out by, the same at all nodes; see `Pipeline.retry_policy`."""
        return self.node(self._known[0]).retry_policy(once=once)

    def address_of(self, host: str, port: int, teller: Pipeline | None = None) -> Address:
        """Return where the node is that another one, the *teller*, calls so; without a host, it is the teller's."""
        if not host and teller is not None:
            host = _address(teller)[0]
        return self._manager.remap_host_port(host, port)

    def id_of(self, pipeline: Pipeline) -> bytes:
        """Return what the node calls itself that *pipeline* leads to; empty as long as that is not known."""
        return self._ids.get(_address(pipeline), b"")

    def moved(self, slot: int, address: Address) -> None:
        """Note that *slot* is at *address*: so said the node that was taken to have it."""
        if self._owners[slot] != address:
            self._leave(slot)
            self._owners[slot] = address
            self.changed.add(slot)
            if address not in self._known:
                self._known.insert(0, address)
            self.refresh()
            if self._telling is None:
                self._telling = self.loop.call_soon(self._tell)

    def doubt(self, pipeline: Pipeline) -> None:
        """Ask another node for the slots: the one that *pipeline* leads to says that it cannot serve.

        Cut off from the others, it goes on naming itself.
        """
        self._doubted = _address(pipeline)
        self.refresh()

    def may_ask(self) -> bool:
        """Whether a call may go to where its slot is being moved to."""
        return self._clock() >= self._asks_from

    def may_not_ask(self) -> None:
        """Note that the right to ASKING is missing: both nodes would send a call to the other."""
        self._asks_from = self._clock() + _NOT_ASKED_FOR
        warn_once(
            self._manager, "+asking",
            "while a slot of the Cluster is being moved, leases in it are not renewed, and none is granted or released",
        )  # fmt: skip

    def waited_for(self, pipeline: Pipeline) -> None:
        """Note that a call waits until *pipeline* has a link again: another may take the node's slots meanwhile."""
        if _address(pipeline) in self._gone:
            self.refresh()

    def refresh(self) -> None:
        """Ask for all slots anew: soon, if that was done just now."""
        if self._refreshing or self._timer is not None or not self._open:
            return
        wait = self._refreshed_at + _REFRESH_EVERY - self._clock()
        if wait > 0:
            self._timer = self.loop.call_later(wait, self._ask)
        else:
            self._ask()

    def close(self) -> None:
        """Close all links at once. A later call would open new ones."""
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        for pipeline in list(self._pipelines.values()):
            pipeline.close()

    @property
    def stuck(self) -> bool:
        """Whether calls wait, and there is no link to any node."""
        return bool(self._pipelines) and all(pipeline.stuck for pipeline in self._pipelines.values())

    def detach_in_fork(self) -> None:
        """In a forked child: see `Connection.detach_in_fork`."""
        for pipeline in self._pipelines.values():
            pipeline.detach_in_fork()

    def _ask(self) -> None:
        self._timer = None
        self._refreshing = True
        self._refreshed_at = self._clock()
        others = [address for address in self._known if address != self._doubted] or self._known
        pipeline = self.node(next(filter(self._answers, others), others[0]))
        pipeline.submit(_SHARDED, (), self._hear_of_channels, _PATIENCE, unsent=_PATIENCE)
        pipeline.submit(_SLOTS, (), self._learn, _PATIENCE, pipeline, unsent=_PATIENCE)

    async def _greet(self, connection: Any, address: Address) -> None:
        """Learn what even the first request has to name: the channels, and whose they are where these go to all nodes.

        With another name, those who wait elsewhere would not be found.
        """
        if not self._heard_of_channels:
            self._note_channels(await _ask_alone(connection, _SHARDED))
        if not self.sharded and address not in self._ids:
            slots = await _ask_alone(connection, _SLOTS)
            if not isinstance(slots, Exception):
                try:
                    self._note_slots(slots, self.node(address))
                except UNREADABLE:
                    raise unreadable(_SLOTS.name, slots) from None

    def _hear_of_channels(self, call: PendingCall, reply: Any) -> None:
        if call.link is not None and call.link.lost is None:
            self._note_channels(reply)

    def _note_channels(self, reply: Any) -> None:
        if not isinstance(reply, NotNowError):
            self._heard_of_channels = True
            sharded, self.sharded = self.sharded, not isinstance(reply, Exception)
            if sharded != self.sharded:
                self._tell()

    def _learn(self, call: PendingCall, reply: Any) -> None:
        self._refreshing = False
        if isinstance(reply, Exception):
            if isinstance(reply, NoPermissionError):
                warn_once(
                    self._manager, "+cluster|slots",
                    "which node took over from one that is gone is found out late, or never",
                )  # fmt: skip
            self._put_last(_address(call.subject))
            self._in_vain += 1
            if self._in_vain < len(self._known) and not isinstance(reply, ConnectionCancelled):
                self.refresh()
            return
        self._in_vain = 0
        self._note_slots(reply, call.subject)

    def _note_slots(self, reply: Any, teller: Pipeline) -> None:
        owners: list[Address | None] = [None] * SLOTS
        others = list(self._startup)
        for first, last, *nodes in reply:
            if not 0 <= first <= last < SLOTS:
                raise ValueError
            address, *further = (self.address_of((host or b"").decode(), int(port), teller) for host, port, *_ in nodes)
            self._ids[address] = nodes[0][2] if len(nodes[0]) > 2 else b""
            owners[first : last + 1] = [address] * (last + 1 - first)
            others += further
        primaries = dict.fromkeys(address for address in owners if address is not None)
        named = dict.fromkeys((*primaries, *others))
        before, self._known = self._known, [address for address in self._known if address in named]
        self._known[:0] = [address for address in primaries if address not in before]
        self._known += [address for address in named if address not in self._known]
        stuck = [pipeline for pipeline in self._pipelines.values() if pipeline.stuck]
        if owners != self._owners:
            changed = {slot for slot in range(SLOTS) if owners[slot] != self._owners[slot]}
            self.changed |= changed
            for slot in changed & self._routes.keys():
                self._leave(slot)
            self._owners = owners
            for pipeline in stuck:
                for waiting in pipeline.take_waiting():
                    self.at(waiting.route.slot).resend(waiting)
            self.on_changed()
        elif stuck:  # until another node has its slots, or it is back
            self.refresh()

    def _leave(self, slot: int) -> None:
        """Note that what is on its way to the node of *slot* will be sent once more, to another."""
        owner = self._owners[slot]
        former = None if owner is None else self._pipelines.get(owner)
        if former is not None and slot in self._routes:
            self._routes[slot].formers.add(former)

    def _answers(self, address: Address) -> bool:
        """Whether there is a link to the node at *address*, as far as is known."""
        pipeline = self._pipelines.get(address)
        return pipeline is not None and pipeline.ready is not None

    def _lost(self, address: Address) -> None:
        self._gone.add(address)
        self._put_last(address)
        self.refresh()
        self._on_lost()

    def _connected(self, address: Address) -> None:
        self._gone.discard(address)
        self._on_connected()

    def _unreachable(self, address: Address) -> None:
        self._put_last(address)
        self.refresh()
        if self._open and address in self._pipelines:
            # What is for any node, as nothing is known yet, goes to the next one; to each once.
            most = min(len(self._known) - 1, _MOST_REDIRECTS)
            for call in self._pipelines[address].take_waiting():
                if self._owners[call.route.slot] is None and call.redirects < most:
                    call.redirects += 1
                    self.at(call.route.slot).resend(call)
                else:
                    self._pipelines[address].resend(call)  # which tells it why in a moment

    def _put_last(self, address: Address) -> None:
        """Ask all others first."""
        if address in self._known:
            self._known.remove(address)
            self._known.append(address)

    def _tell(self) -> None:
        self._telling = None
        self.on_changed()


async def _ask_alone(connection: Any, command: PlainCommand) -> Any:
    """Return what is answered over a *connection* of redis-py that is used for nothing else yet."""
    try:
        await connection.send_packed_command(command.eval(()))
        return await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return recognized(error)


def _address(pipeline: Pipeline) -> Address:
    return cast("Node", pipeline.endpoint).address


@final
class SlotRoute:
    """The way to whichever node has one slot; stands where one server has its `Pipeline`."""

    __slots__ = ("_router", "formers", "slot")

    def __init__(self, router: Router, slot: int) -> None:
        self._router = router
        self.slot = slot
        self.formers: set[Pipeline] = set()
        """To the nodes that had the slot before, where something about it may be on its way still."""

    @property
    def ready(self) -> Connection | None:
        return self._router.at(self.slot).ready

    @property
    def round_trip(self) -> float:
        return self._router.at(self.slot).round_trip

    @property
    def patience(self) -> float:
        return self._router.at(self.slot).patience

    @property
    def undo_patience(self) -> float:
        return self._router.at(self.slot).undo_patience

    def patience_after(self, silences: int) -> float:
        return self._router.at(self.slot).patience_after(silences)

    def undo_patience_after(self, silences: int) -> float:
        return self._router.at(self.slot).undo_patience_after(silences)

    def submit(
        self, bound: Command, args: Arguments | Callable[[Any, Connection], Arguments], receiver: CallReceiver,
        patience: float, subject: Any = None, tell: Any = None, unsent: float | None = None, soon: bool = False,
    ) -> PendingCall:  # fmt: skip
        pipeline = self._router.at(self.slot)
        call = pipeline.submit(bound, args, receiver, patience, subject, tell, unsent, soon)
        call.route, call.redirects, call.asking, call.via = self, 0, False, pipeline
        if call.link is None:
            self._router.waited_for(pipeline)
        return call

    @property
    def pipeline(self) -> Pipeline:
        """The one to the node that has the slot, as far as that is known."""
        return self._router.at(self.slot)

    def late(self, wanted: Callable[[PendingCall], bool]) -> PendingCall | None:
        """Return a call that is *wanted*, and on its way to a node that had the slot before: others overtake it."""
        for former in tuple(self.formers):
            calls = [call for call in former.unanswered() if getattr(call, "route", None) is self]
            if not calls:
                self.formers.discard(former)
            for call in filter(wanted, calls):
                return call
        return None

    def may_not_ask(self) -> None:
        self._router.may_not_ask()

    def doubt(self, call: PendingCall) -> None:
        """Note that the node which *call* went to says that it cannot serve its slots."""
        self._router.doubt(call.via)

    def report_only(self, call: PendingCall) -> None:
        """Have *call*, which left by another pipeline to the same node, told that it was not run."""
        call.route, call.redirects, call.asking, call.via = self, _MOST_REDIRECTS, False, self.pipeline

    def redirect(self, call: PendingCall, error: AskError) -> bool:
        """Send *call* to where its answer points; False if it is to be told instead."""
        router = self._router
        where = cast("Any", error)
        address = router.address_of(where.host, where.port, call.via)
        moved = isinstance(error, MovedError)
        if moved:
            router.moved(self.slot, address)
        # defect: I1-abandoned
        if call.abandoned or call.redirects >= _MOST_REDIRECTS or (not moved and not router.may_ask()):
            return False
        call.redirects += 1
        call.asking = not moved  # defect: I4-asking
        router.node(address).resend(call)
        return True


Route = Pipeline | SlotRoute
"""The way to the server that has a name."""
