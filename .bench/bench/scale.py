"""How much is measured: everything, or the least that shows that the bench itself works."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of all scenarios. Times are seconds."""

    runs: int = 5
    attempts: int = 4
    """How often each run is made at most, if the machine's host takes its processors away meanwhile."""
    fresh: bool = True
    """Each measurement in a process of its own. Starting dozens takes longer than a test has."""
    loop: str = "asyncio"
    """On which event loop; see `event_loops`."""
    at_once: int = 1
    """Measurements at one time: one, unless nobody cares for the figures."""
    seconds: float = 3.0
    """How long a throughput is measured, after the warm-up."""
    warm_up: float = 0.5
    tasks: tuple[int, ...] = (10, 100, 1000)
    processes: int = 2
    waiters: int = 100
    """Per process."""
    write_percent: tuple[int, ...] = (0, 2, 10, 100)
    """How many of those waiters write, where the others read."""
    leases: int = 10_000
    """Held at once under the watchdog."""
    ttl: float = 30.0
    held: float = 3.0
    """How long they are held, in TTLs."""
    crowd: int = 10_000
    """Leases, and waiters, of one process."""
    crash_ttl: float = 2.0
    doomed: int = 10
    """Waiters that are killed or stopped."""
    fault_ttl: float = 2.0
    """Well above what a criterion gives for "soon", or nothing could fail it."""
    round_trips: tuple[float, ...] = (0.001, 0.005)
    """How far away the server is."""
    names: int = 100_000
    """How many different ones are used where nothing of them may stay."""
    lengths: tuple[int, ...] = (10, 100, 1_000, 10_000)
    """Queue lengths at which the release script is timed."""
    sessions: tuple[int, ...] = (1, 2)
    """Sessions among which those waiters are spread: with one, grants come by reply, with two by message."""
    crowds: tuple[int, int] = (10, 1_000)
    """Waiters, few and many, between which the commands per hand-off must not differ."""
    servers: tuple[int, ...] = (3, 5)
    """Over how many a quorum is had."""
    quorum_patience: float = 10.0
    """After which an attempt at it is given up."""


TINY = Scale(
    runs=1,
    attempts=1,
    fresh=False,
    at_once=4,
    seconds=0.1,
    warm_up=0.05,
    tasks=(3,),
    processes=2,
    waiters=3,
    write_percent=(34,),
    leases=5,
    ttl=0.3,
    held=1.0,
    crowd=5,
    crash_ttl=0.4,
    doomed=2,
    fault_ttl=1.2,
    round_trips=(0.001,),
    names=200,
    lengths=(3, 6),
    sessions=(2,),
    crowds=(2, 4),
    servers=(3,),
    quorum_patience=2.0,
)
