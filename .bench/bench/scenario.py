"""What a scenario is: cases to measure, how one is measured in its own process, and the report on all."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.figures import Case, Parameters, Results, Run
from bench.scale import Scale
from bench.tables import Report


@dataclass(frozen=True, slots=True)
class Server:
    """Where the run's redis-server listens."""

    url: str
    """TCP loopback: for what is measured."""
    admin_url: str
    """Unix socket: for the bench's own counters."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One question, asked of every library that can answer it."""

    name: str
    title: str
    cases: Callable[[Scale, Sequence[str]], list[Case]]
    """The cases for these libraries, in the order of the table's rows."""
    measure: Callable[[str, Parameters, Server], Awaitable[Run]]
    """Runs in a fresh process: library, parameters, server."""
    report: Callable[[Results, Scale], Report]
    panels: Sequence[tuple[str, str]] = ()
    """What the picture shows: figures, and their names there."""
    server_options: Mapping[str, str] = field(default_factory=dict)
    """Lines for redis.conf, if the server's defaults would decide the result instead of the libraries."""
