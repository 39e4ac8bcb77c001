"""The nodes of a Redis Cluster: a pipeline to each node that is needed, and the node that has the slot of a name.

A node that no longer has a slot names the node that has it, and has not run the call. So the same call goes there, as
after NOSCRIPT. The slots are asked for again after that, and when a link is lost or refused. No call waits for the
answer: with nothing known yet, any node will do.

While a slot is being moved, its old node serves the keys that are still there, and answers ASK for the others. The new
node is then asked once, with the whole script. If only some keys of a name have moved, both nodes answer TRYAGAIN.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import final

from redis.asyncio.cluster import NodesManager
from redis.asyncio.retry import Retry
from redis.exceptions import AskError, MovedError, NoPermissionError

from .._core.answers import RidingOut
from .._core.keys import SLOTS, slot_of
from .._core.replies import RawReply
from .._core.untyped import RawConnection, untyped
from .clients import warn_of_missing_right
from .connection import NEVER, Connection, ConnectionCancelled, Endpoint, connected
from .pipeline import BaseRoute, PendingCall, Pipeline
from .scripts import PlainCommand, pack

Address = tuple[str, int]

_REFRESH_INTERVAL = 0.2
"""Minimum interval in seconds between two requests for the slots."""

_PATIENCE = 1.0
"""Timeout for the reply in seconds; then another node is asked."""

_MAX_REDIRECTS = 16
"""Maximum number of redirects of one call, as in redis-py: during a failover, two nodes may send it to each other."""

_NO_ASKING = 10.0
"""Seconds without any ASKING, after Redis said that the user lacks the right to it."""

_ASKING = pack(("ASKING",))

_SLOTS = PlainCommand("CLUSTER", "SLOTS")


@final
class Node(Endpoint):
    """One node of a Cluster; connections are made as the user's client would."""

    fails_over = True

    def __init__(self, manager: NodesManager, address: Address, on_unreachable: Callable[[Address], None]) -> None:
        self._manager = manager
        self.address = address
        self._on_unreachable = on_unreachable

    async def connect(self) -> RawConnection:
        terms = {name: term for name, term in self._manager.connection_kwargs.items() if name not in _NOT_OURS}
        make = terms.pop("connection_class")
        host, port = self.address
        connection = make(**terms, host=host, port=port)
        return await connected(connection, connection.connect)

    def unreachable(self) -> None:
        self._on_unreachable(self.address)

    def retry(self) -> Retry:
        return NEVER  # the outages that a client would retry are retried in any case


_NOT_OURS = (
    "max_connections", "response_callbacks", "redis_connect_func", "oss_cluster_maint_notifications_handler",
    "maint_notifications_config",
)  # fmt: skip
"""Options that are not for a connection, or that make it read from replicas or report to the user's client."""


@final
class SlotMap:
    """Which node has which slot, as far as the nodes have said, and in which order to ask them for the slots.

    Invariant: `known` is never empty. The nodes that were lost or have failed come last, in the order of that.
    """

    def __init__(self, startup: list[Address]) -> None:
        self._startup = startup
        self.known = list(startup)
        self.owners: list[Address | None] = [None] * SLOTS
        self._failed: set[Address] = set()
        """Nodes that were asked for the slots in this round and failed. It ends when one tells them, or all failed."""
        self.doubted: Address | None = None
        """The node that said last that it cannot serve its slots. Cut off from the others, it goes on naming itself."""

    def put_last(self, address: Address) -> None:
        """Ask all other nodes first."""
        if address in self.known:
            self.known.remove(address)
            self.known.append(address)

    def next_to_ask(self, linked: set[Address]) -> Address:
        """Return a node to ask for the slots, if possible a *linked* node."""
        left = self._left()
        if not left:
            self._failed.clear()  # another round
            left = self._left()
        return next((address for address in left if address in linked), left[0])

    def _left(self) -> list[Address]:
        """Return the nodes left to ask in this round. The doubted node is none of them, unless it is the only one."""
        others = [address for address in self.known if address != self.doubted] or self.known
        return [address for address in others if address not in self._failed]

    def record_failure(self, address: Address) -> bool:
        """Record that a node did not tell the slots. Return True if others are left to ask in this round."""
        self.put_last(address)
        self._failed.add(address)
        return bool(self._left())

    def learn(self, reply: RawReply, address_of: Callable[[str, int], Address]) -> set[int]:
        """Take the reply to CLUSTER SLOTS, and return the slots that have changed hands."""
        owners: list[Address | None] = [None] * SLOTS
        others = list(self._startup)
        for first, last, *nodes in reply:
            if not 0 <= first <= last < SLOTS:
                raise ValueError
            address, *further = (address_of((host or b"").decode(), int(port)) for host, port, *_ in nodes)
            owners[first : last + 1] = [address] * (last + 1 - first)
            others += further
        primaries = dict.fromkeys(address for address in owners if address is not None)
        named = dict.fromkeys((*primaries, *others))
        new = [address for address in primaries if address not in self.known]
        self.known = new + [address for address in self.known if address in named]
        self.known += [address for address in named if address not in self.known]
        self._failed.clear()  # equivalent: line dropped, the others are asked first, and then all again
        before, self.owners = self.owners, owners
        return {slot for slot in range(SLOTS) if owners[slot] != before[slot]} if owners != before else set[int]()


@final
class Router:
    """The nodes of one client's Cluster, in one event loop; takes the place of the `Pipeline` to one server."""

    def __init__(
        self, manager: NodesManager, loop: asyncio.AbstractEventLoop, clock: Callable[[], float],
        on_lost: Callable[[], None], on_connected: Callable[[], None],
    ) -> None:  # fmt: skip
        self._manager = manager
        self.loop = loop
        self.clock = clock
        self._on_lost = on_lost
        self._on_connected = on_connected
        self.on_changed: Callable[[], None] = lambda: None
        """Called when slots have changed hands: once for all changes found in one turn of the loop."""
        self.changed: set[int] = set()
        """Slots that have changed hands; `on_changed` takes them."""
        self._asking_from = -math.inf
        """When calls may go along with ASKING again."""
        self._pipelines: dict[Address, Pipeline] = {}
        self._map = SlotMap([(node.host, int(node.port)) for node in manager.startup_nodes.values()])
        self._routes: dict[int, SlotRoute] = {}
        self._refreshing = False
        self._refreshed_at = -_REFRESH_INTERVAL
        self._gone: set[Address] = set()
        """Nodes whose link was lost, without a new link since."""
        self._timer: asyncio.TimerHandle | None = None
        self._reporting: asyncio.Handle | None = None
        self._open = False

    def route(self, key: bytes) -> "SlotRoute":
        """Return the way to the node that has the keys that begin with *key*."""
        slot = slot_of(key)
        route = self._routes.get(slot)
        if route is None:
            route = self._routes[slot] = SlotRoute(self, slot)
        return route

    def at(self, slot: int) -> Pipeline:
        """Return the pipeline to the node that has *slot*, as far as that is known."""
        owner = self._map.owners[slot]
        self._open = True
        if owner is None:
            self.refresh()
            owner = self._map.known[0]
        return self._pipelines.get(owner) or self.node(owner)

    def node(self, address: Address) -> Pipeline:
        pipeline = self._pipelines.get(address)
        if pipeline is None:
            node = Node(self._manager, address, self._unreachable)
            lost, connected = partial(self._lost, address), partial(self._connected, address)
            pipeline = Pipeline(node, self.loop, self.clock, lost, connected)
            self._pipelines[address] = pipeline
        return pipeline

    def retry_policy(self, *, once: bool = False) -> Retry | RidingOut:
        """See `Pipeline.retry_policy`; it is the same at all nodes."""
        return self.node(self._map.known[0]).retry_policy(once=once)

    def address_of(self, host: str, port: int, pipeline: Pipeline) -> Address:
        """Return the address of a node that the node of *pipeline* calls so. An empty *host* is that of *pipeline*."""
        return self._manager.remap_host_port(host or pipeline.endpoint.address[0], port)

    def moved(self, slot: int, address: Address) -> None:
        """Record that *slot* is at *address*, as the node that was thought to have it says."""
        if self._map.owners[slot] != address:
            self._leave(slot, self._map.owners[slot])
            self._map.owners[slot] = address
            self.changed.add(slot)
            if address not in self._map.known:
                self._map.known.insert(0, address)
            self.refresh()
            if self._reporting is None:
                self._reporting = self.loop.call_soon(self._report)

    def doubt(self, pipeline: Pipeline) -> None:
        """Ask another node for the slots, as the node of *pipeline* says that it cannot serve."""
        self._map.doubted = pipeline.endpoint.address
        self.refresh()

    def may_ask(self) -> bool:
        return self.clock() >= self._asking_from

    def may_not_ask(self) -> None:
        """Record that the right to ASKING is missing: both nodes would send a call to the other."""
        self._asking_from = self.clock() + _NO_ASKING
        warn_of_missing_right(
            self._manager, "+asking",
            "while a slot of the Cluster is being moved, leases in it are not renewed, and none is granted or released",
        )  # fmt: skip

    def waited_for(self, pipeline: Pipeline) -> None:
        """Record that a call waits for a new link of *pipeline*: another node may take over its slots meanwhile."""
        if pipeline.endpoint.address in self._gone:
            self.refresh()

    def refresh(self) -> None:
        """Ask for all slots again, `_REFRESH_INTERVAL` after the last time."""
        if self._refreshing or self._timer is not None or not self._open:
            return
        wait = self._refreshed_at + _REFRESH_INTERVAL - self.clock()
        if wait > 0:
            self._timer = self.loop.call_later(wait, self._ask_slots)
        else:
            self._ask_slots()

    def close(self) -> None:
        """Close all links at once. A later call would open new links."""
        self._open = False
        for handle in (self._timer, self._reporting):
            if handle is not None:
                handle.cancel()
        self._timer = self._reporting = None
        for pipeline in list(self._pipelines.values()):
            pipeline.close()

    @property
    def stuck(self) -> bool:
        """Whether calls wait, and there is no link to any node."""
        return bool(self._pipelines) and all(pipeline.stuck for pipeline in self._pipelines.values())

    def detach_in_fork(self) -> None:
        for pipeline in self._pipelines.values():
            pipeline.detach_in_fork()

    def _ask_slots(self) -> None:
        self._timer = None
        self._refreshing = True
        self._refreshed_at = self.clock()
        linked = {address for address, pipeline in self._pipelines.items() if pipeline.ready is not None}
        pipeline = self.node(self._map.next_to_ask(linked))
        pipeline.submit(_SLOTS, (), self._on_slots, _PATIENCE, pipeline, unsent=_PATIENCE)

    def _on_slots(self, call: PendingCall, reply: RawReply) -> None:
        self._refreshing = False
        if not isinstance(reply, Exception):
            self._note_slots(reply, call.subject)
            return
        if isinstance(reply, NoPermissionError):
            warn_of_missing_right(
                self._manager, "+cluster|slots",
                "which node took over from a lost node is found out late, or never",
            )  # fmt: skip
        if self._map.record_failure(call.subject.endpoint.address) and not isinstance(reply, ConnectionCancelled):
            self.refresh()

    def _note_slots(self, reply: RawReply, pipeline: Pipeline) -> None:
        before = self._map.owners
        changed = self._map.learn(reply, lambda host, port: self.address_of(host, port, pipeline))
        stuck = [pipeline for pipeline in self._pipelines.values() if pipeline.stuck]
        if changed:
            self.changed |= changed
            for slot in changed & self._routes.keys():
                self._leave(slot, before[slot])
            for waiting in stuck:
                for call, redirect in _redirects_of(waiting.take_waiting()):
                    redirect.send(call, self.at(redirect.route.slot))
            self.on_changed()
        elif stuck:  # until another node has its slots, or it is back
            self.refresh()

    def _leave(self, slot: int, owner: Address | None) -> None:
        """Record that calls on their way to *owner*, which had *slot*, will be sent a second time, to another node."""
        former = None if owner is None else self._pipelines.get(owner)
        if former is not None and slot in self._routes:
            self._routes[slot].formers.add(former)

    def _lost(self, address: Address) -> None:
        self._gone.add(address)
        self._map.put_last(address)
        self.refresh()
        self._on_lost()

    def _connected(self, address: Address) -> None:
        self._gone.discard(address)
        self._on_connected()

    def _unreachable(self, address: Address) -> None:
        self._map.put_last(address)
        self.refresh()
        if self._open and address in self._pipelines:
            # While nothing is known, a call goes to any node: here to the next one, and to each node once.
            pipeline, most = self._pipelines[address], min(len(self._map.known) - 1, _MAX_REDIRECTS)
            for call, redirect in _redirects_of(pipeline.take_waiting()):
                if self._map.owners[redirect.route.slot] is None and redirect.count < most:
                    redirect.count += 1
                    redirect.send(call, self.at(redirect.route.slot))
                else:
                    redirect.send(call, pipeline)  # which reports the reason in a moment

    def _report(self) -> None:
        self._reporting = None
        self.on_changed()


@final
class SlotRoute(BaseRoute):
    """The way to the node that has one slot; takes the place of the `Pipeline` to one server."""

    __slots__ = ("clock", "formers", "router", "slot")

    def __init__(self, router: Router, slot: int) -> None:
        self.clock = router.clock
        self.router = router
        self.slot = slot
        self.formers: set[Pipeline] = set()
        """To nodes that had the slot before, where calls about it may still be on their way."""

    @property
    def pipeline(self) -> Pipeline:
        return self.router.at(self.slot)

    def start(self, call: PendingCall, unsent: float | None = None, soon: bool = False) -> None:
        pipeline = self.pipeline
        pipeline.start(call, unsent, soon)
        call.redirect = Redirect(self, pipeline)
        if call.link is None:
            self.router.waited_for(pipeline)

    def late(self, wanted: Callable[[PendingCall], bool]) -> PendingCall | None:
        """Return a *wanted* call on its way to a node that had the slot before: later calls overtake it."""
        for former in tuple(self.formers):
            calls = [call for call, redirect in _redirects_of(former.unanswered()) if redirect.route is self]
            if not calls:
                self.formers.discard(former)
            for call in filter(wanted, calls):
                return call
        return None

    def report_only(self, call: PendingCall) -> None:
        """Report a refusal of *call*, which left by another pipeline to the same node, and never send it on."""
        call.redirect = Redirect(self, self.pipeline, _MAX_REDIRECTS)


@final
class Redirect:
    """Sends one call to where a refusal points.

    Invariant: `via` is the pipeline in which the call waits, or by which it left.
    """

    __slots__ = ("_asking", "count", "route", "via")

    def __init__(self, route: SlotRoute, via: Pipeline, count: int = 0) -> None:
        self.route = route
        self.via = via
        self.count = count
        """How often it was sent elsewhere."""
        self._asking = False

    def send(self, call: PendingCall, pipeline: Pipeline) -> None:
        self.via = pipeline
        pipeline.resend(call)

    def follow(self, call: PendingCall, error: AskError) -> bool:
        """Send *call* to where its reply points. Return False if the reply is to be reported instead."""
        router = self.route.router
        where = untyped(error)
        address = router.address_of(where.host, where.port, self.via)
        moved = isinstance(error, MovedError)
        if moved:
            router.moved(self.route.slot, address)
        # I1: a call that was given up is never sent on, because its undo may be ahead of it.
        # defect: I1-abandoned
        if call.abandoned or self.count >= _MAX_REDIRECTS or (not moved and not router.may_ask()):
            return False
        self.count += 1
        self._asking = not moved  # defect: I4-asking
        self.send(call, router.node(address))
        return True

    def precede(self, link: Connection, now: float) -> None:
        """Send ASKING ahead of the call, if it goes to where its slot is being moved to."""
        if self._asking:
            link.send(_ASKING, _Asking(now, self.route.router))

    def doubt(self) -> None:
        """Record that the node which has the call says that it cannot serve its slots."""
        self.route.router.doubt(self.via)


def _redirects_of(calls: Iterable[PendingCall]) -> list[tuple[PendingCall, Redirect]]:
    return [(call, call.redirect) for call in calls if call.redirect is not None]


@final
class _Asking:
    """Receives the reply to ASKING: it may be that the user lacks the right to it."""

    receiver = None

    def __init__(self, sent_at: float, router: Router) -> None:
        self.sent_at = sent_at
        self._router = router

    def __call__(self, reply: object) -> None:
        if isinstance(reply, NoPermissionError):
            self._router.may_not_ask()


Route = Pipeline | SlotRoute
"""The way to the server that has a name."""
