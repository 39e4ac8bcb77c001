"""How much is measured: everything, or just enough to show that the bench itself works."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """The sizes of all scenarios. Times are seconds."""

    runs: int = 5
    attempts: int = 4
    """Maximum number of attempts at each run, if the machine's host takes its processors away meanwhile."""
    fresh: bool = True
    """Whether each measurement has a process of its own. Starting dozens takes too long for a test."""
    loop: str = "asyncio"
    """Name of the event loop; see `event_loops`."""
    at_once: int = 1
    """Number of measurements at the same time: one, unless the figures do not matter."""
    seconds: float = 3.0
    """How long a throughput is measured, after the warm-up."""
    warm_up: float = 0.5
    tasks: tuple[int, ...] = (10, 100, 1000)
    processes: int = 2
    waiters: int = 100
    """Per process."""
    write_percent: tuple[int, ...] = (0, 2, 10, 100)
    """Percent of the waiters that write; the others read."""
    leases: int = 10_000
    """Number of leases held at once under the watchdog."""
    ttl: float = 30.0
    held: float = 3.0
    """How long they are held, in TTLs."""
    crowd: int = 10_000
    """Number of leases, and of waiters, of one process."""
    large_processes: int = 20
    """Number of processes that share half of that crowd."""
    large_names: int = 100
    """Number of names that the whole crowd shares."""
    crash_ttl: float = 2.0
    doomed: int = 10
    """Number of waiters that are killed or stopped."""
    fault_ttl: float = 2.0
    """TTL in the faults scenario. It must be well above what the criteria call "soon", or none could fail them."""
    round_trips: tuple[float, ...] = (0.001, 0.005)
    """Round trips that the proxy adds."""
    names: int = 100_000
    """Number of different names that are used once, and should leave nothing."""
    lengths: tuple[int, ...] = (10, 100, 1_000, 10_000)
    """Queue lengths at which the release script is timed."""
    sessions: tuple[int, ...] = (1, 2)
    """Number of sessions with those waiters. With one, grants come by reply; with two, by message."""
    crowds: tuple[int, int] = (10, 1_000)
    """Few and many waiters: the commands per hand-off must be the same for both."""
    servers: tuple[int, ...] = (3, 5)
    """Number of servers of a quorum."""
    quorum_patience: float = 10.0
    """Timeout for one attempt at a quorum."""


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
    crowd=6,
    large_processes=3,
    large_names=2,
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
