"""What a session has for each server that its names are on: its one server, or the nodes of a Cluster as needed.

The waiters of a Cluster's names are told by the node that has them: so there is a subscriber to each node where
somebody waits, and the lines go along with their slots.
"""

from collections.abc import Callable, Container
from functools import partial
from typing import cast, final

from .._core.keys import of_shard
from .._engine.context import Context
from .._redis.cluster import Route, Router
from .._redis.pipeline import Pipeline
from .listening import Lines, Listening
from .replication import Replication
from .wait_queue import WaitQueue


@final
class OneServer:
    """All names are here."""

    alone = True

    def __init__(self, context: Context, pipeline: Pipeline) -> None:
        self._context = context
        self._listening = Listening(context, pipeline.endpoint, Lines())
        self._replication = Replication(pipeline.endpoint, context.loop, context.clock)
        self.queues = cast("dict[bytes, WaitQueue]", self._listening.queues)
        self.listenings, self.replications = (self._listening,), (self._replication,)

    def listening(self, route: Route) -> Listening:
        return self._listening

    def replication(self, route: Route) -> Replication:
        return self._replication

    def link_lost(self) -> None:
        """Ask for all who wait, over a new link."""
        if self.queues:  # defect: W6-link-lost
            self._context.loop.call_soon(self._listening.recheck_all)


@final
class ClusterNodes:
    """The nodes that have been asked about names."""

    alone = False

    def __init__(self, context: Context, router: Router, on_moved: Callable[[Container[int]], None]) -> None:
        """*on_moved* is told which slots have gone to other nodes, along with what was held and awaited there."""
        self._context = context
        self._router = router
        self._on_moved = on_moved
        self._lines = Lines()
        self.queues = cast("dict[bytes, WaitQueue]", self._lines.queues)
        self._listenings: dict[Pipeline, Listening] = {}
        self._replications: dict[Pipeline, Replication] = {}
        router.on_changed = self._changed

    @property
    def listenings(self) -> tuple[Listening, ...]:
        return tuple(self._listenings.values())

    @property
    def replications(self) -> tuple[Replication, ...]:
        return tuple(self._replications.values())

    def listening(self, route: Route) -> Listening:
        pipeline = route.pipeline
        listening = self._listenings.get(pipeline)
        if listening is None:
            form, counted_by = partial(self._form, pipeline), partial(self._counted_by, pipeline)
            listening = Listening(self._context, pipeline.endpoint, self._lines, form, counted_by)
            self._listenings[pipeline] = listening
        return listening

    def replication(self, route: Route) -> Replication:
        pipeline = route.pipeline
        replication = self._replications.get(pipeline)
        if replication is None:
            context = self._context
            replication = self._replications[pipeline] = Replication(pipeline.endpoint, context.loop, context.clock)
        return replication

    def link_lost(self) -> None:
        """Ask for those who wait where there is no link now; the others have nothing to do with it."""
        for pipeline, listening in self._listenings.items():
            if pipeline.ready is None:
                self._context.loop.call_soon(listening.recheck_all)

    def _form(self, pipeline: Pipeline, channels: bytes) -> bytes:
        """Return what channels begin with at a node.

        One without channels of shards sends each message to all nodes; only who has subscribed to that of the node is
        to be found there.
        """
        return channels + b"{" if self._router.sharded else b"%b%b:" % (channels, self._router.id_of(pipeline))

    def _counted_by(self, pipeline: Pipeline, channel: bytes) -> Route:
        return self._router.route(channel) if of_shard(channel) else pipeline

    def _changed(self) -> None:
        for listening in self._listenings.values():
            listening.forget_addresses()
        for queue in list(self.queues.values()):
            queue.follow()
        if not self._router.sharded:  # else each channel is left by itself
            for listening in self._listenings.values():
                if not listening.own():
                    listening.subscriber.close()
        slots, self._router.changed = self._router.changed, set()
        self._on_moved(slots)  # defect: I3-moved
