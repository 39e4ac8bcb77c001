"""Decides by the kind of the user's client where the connections of one event loop lead to."""

import asyncio
from collections.abc import Callable
from typing import final

from redis.asyncio.cluster import NodesManager

from .clients import Pool, Server, behind_sentinels
from .cluster import Router
from .pipeline import Pipeline
from .sentinel import SentinelPrimary


def pipeline_of(
    pool: Pool, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], on_lost: Callable[[], None],
    on_connected: Callable[[], None],
) -> Pipeline | Router:  # fmt: skip
    """Return the pipeline to the server of a client with this *pool*, or the router to the nodes of its Cluster."""
    if isinstance(pool, NodesManager):
        return Router(pool, loop, clock, on_lost, on_connected)
    endpoint = SentinelPrimary(pool, loop, clock) if behind_sentinels(pool) else Server(pool)
    return Pipeline(endpoint, loop, clock, on_lost, on_connected)


@final
class Pipelines:
    """The pipelines of a loop other than the session's: one for each client of the user."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], on_lost: Callable[[], None],
        on_connected: Callable[[], None],
    ) -> None:  # fmt: skip
        self.loop = loop
        self._terms = loop, clock, on_lost, on_connected
        self._pipelines: dict[int, Pipeline | Router] = {}

    def of(self, pool: Pool) -> Pipeline | Router:
        pipeline = self._pipelines.get(id(pool))
        if pipeline is None:
            pipeline = self._pipelines[id(pool)] = pipeline_of(pool, *self._terms)
        return pipeline

    def close(self) -> None:
        for pipeline in self._pipelines.values():
            pipeline.close()

    def detach_in_fork(self) -> None:
        for pipeline in self._pipelines.values():
            pipeline.detach_in_fork()
