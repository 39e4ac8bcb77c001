"""What befalls a run, drawn from its seed before it begins: which faults, when, whom, and for how long.

Real processes do not repeat themselves exactly, but with one seed they meet the same faults and do the same work.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

WORKERS = 8
TTL = 1.0
"""Seconds; no lease of a run is longer, unless its plan says so."""

TTL_OF_SETS = 2.0
"""The same where the primary is replaced: a failover takes less than two seconds, which some leases outlive."""

On = Literal["server", "sentinel", "cluster"]
"""What the locks are on: one server, a primary that Sentinels watch, or a Cluster."""

SETS: tuple[On, ...] = ("sentinel", "cluster")
ALL: tuple[On, ...] = ("server", *SETS)

LOCKS = ("lock 0", "lock 1", "lock 2", "lock 3")
PERMITS, LIMIT = "permits", 3
"""A semaphore beside the locks."""

READERS, ALONE = "readers", 1000
"""A read-write lock, and how many readers a writer counts for."""

NAMES = (*LOCKS, PERMITS, READERS, "re-entered", "tree/leaf", "leader")
LIMITS = {PERMITS: LIMIT, READERS: ALONE}
STARTS, PER = 5, 0.5
"""A rate limiter's, which holds nothing and so is none of the names."""

Whom = Literal["worker", "server", "set"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: whom it befalls, how often per minute, for how many seconds at most, whether data goes, and
    where there is such a thing. Those of connections need proxies, and so an address that does not change.
    """

    whom: Whom
    per_minute: float
    longest: float = 0.0
    loses: bool = False
    on: tuple[On, ...] = ("server",)


KINDS: dict[str, Kind] = {
    "requests delayed": Kind("worker", 12, TTL), "replies delayed": Kind("worker", 12, TTL),
    "requests held back": Kind("worker", 10, 2 * TTL), "black hole": Kind("worker", 12, 3 * TTL),
    "requests swallowed": Kind("worker", 8, 3 * TTL), "replies swallowed": Kind("worker", 8, 3 * TTL),
    "connections cut": Kind("worker", 15), "wake-up connection cut": Kind("worker", 10),
    "connections refused": Kind("worker", 6, TTL), "request lost": Kind("worker", 12), "reply lost": Kind("worker", 20),
    "worker stopped": Kind("worker", 15, 2 * TTL, on=ALL), "worker killed": Kind("worker", 10, on=ALL),
    "worker forked and killed": Kind("worker", 6, on=ALL), "name revoked": Kind("worker", 10, on=ALL),
    "loop blocked": Kind("worker", 12, 2 * TTL, on=ALL), "server stopped": Kind("server", 3, 2 * TTL),
    "server killed": Kind("server", 4), "DEBUG SLEEP": Kind("server", 3, 2 * TTL),
    "CLIENT PAUSE WRITE": Kind("server", 3, 2 * TTL), "CLIENT KILL normal": Kind("server", 10, on=ALL),
    "CLIENT KILL pubsub": Kind("server", 10, on=ALL), "SCRIPT FLUSH": Kind("server", 15, on=ALL),
    "out of memory": Kind("server", 4, TTL), "too few replicas": Kind("server", 4, TTL),
    "FLUSHALL": Kind("server", 4, loses=True), "server killed, data gone": Kind("server", 4, loses=True),
    "clock stepped forward": Kind("server", 3, 60.0, loses=True), "primary killed": Kind("set", 4, on=SETS),
    "primary stopped": Kind("set", 3, on=SETS), "failover": Kind("set", 4, on=SETS),
    "slot moved": Kind("set", 15, on=("cluster",)), "slot held open": Kind("set", 6, 2 * TTL, on=("cluster",)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault: so many seconds after the start, for so many seconds (or by so many, if it is a step)."""

    at: float
    kind: str
    worker: int
    seconds: float
    reset: bool
    """How what is lost is lost: the connection is reset, or stays open and carries nothing any more."""

    def __str__(self) -> str:
        whom = f" of worker {self.worker}" if KINDS[self.kind].whom == "worker" else ""
        return f"{self.at:7.2f} s  {self.kind}{whom}" + (f" ({self.seconds:.2f} s)" if self.seconds else "")


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is drawn for one run."""

    seed: int
    seconds: float
    loses: bool
    """Whether the server may lose its data. Then leases are lost with it, and two may believe to hold one name (L5)."""

    strikes: tuple[Strike, ...]
    killed_at_the_end: tuple[int, ...]
    """Workers that are not asked to end, but killed."""

    ttl: float = TTL
    on: On = "server"
    replicas: int = 0
    """How many replicas must have a grant before it counts. Without any, one that takes over may not know it (L3)."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.strikes))


def draw(seed: int, seconds: float, on: On = "server", spared: int = 0) -> Plan:
    """Return the plan of *seed*, in which the first *spared* workers are never killed.

    Each has some kinds of fault only: where everything goes wrong, nothing gets done.
    """
    rng = random.Random(seed)
    loses = rng.random() < 0.4
    strikes = [
        strike
        for name, kind in KINDS.items()
        if on in kind.on
        and (rng.random() < (0.5 if on == "server" else 0.8) or kind.loses)
        and (loses or not kind.loses)
        for strike in _strikes(rng, name, kind, seconds)
        if strike.worker >= spared or "killed" not in name
    ]
    killed = rng.sample(range(spared, WORKERS), rng.randrange(WORKERS // 2))
    ordered = tuple(sorted(strikes, key=lambda strike: strike.at))
    if on == "server":
        return Plan(seed, seconds, loses, ordered, tuple(killed))
    return Plan(seed, seconds, False, ordered, tuple(killed), TTL_OF_SETS, on, replicas=rng.randrange(2))


def _strikes(rng: random.Random, name: str, kind: Kind, seconds: float) -> Iterator[Strike]:
    at = 0.0
    while True:
        at += rng.expovariate(kind.per_minute / 60)
        if at > seconds:
            return
        length = kind.longest * (rng.random() if rng.random() < 0.7 else 0.1 * rng.random())
        yield Strike(at, name, rng.randrange(WORKERS), length, rng.random() < 0.5)
