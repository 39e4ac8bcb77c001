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

LOCKS = ("lock 0", "lock 1", "lock 2", "lock 3")
PERMITS, LIMIT = "permits", 3
"""A semaphore beside the locks."""

NAMES = (*LOCKS, PERMITS)

Whom = Literal["worker", "server"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault: whom it befalls, how often per minute, for how many seconds at most, and whether data goes."""

    whom: Whom
    per_minute: float
    longest: float = 0.0
    loses: bool = False


KINDS: dict[str, Kind] = {
    "requests delayed": Kind("worker", 12, TTL),
    "replies delayed": Kind("worker", 12, TTL),
    "requests held back": Kind("worker", 10, 2 * TTL),
    "black hole": Kind("worker", 12, 3 * TTL),
    "requests swallowed": Kind("worker", 8, 3 * TTL),
    "replies swallowed": Kind("worker", 8, 3 * TTL),
    "connections cut": Kind("worker", 15),
    "wake-up connection cut": Kind("worker", 10),
    "connections refused": Kind("worker", 6, TTL),
    "request lost": Kind("worker", 12),
    "reply lost": Kind("worker", 20),
    "worker stopped": Kind("worker", 15, 2 * TTL),
    "worker killed": Kind("worker", 10),
    "worker forked and killed": Kind("worker", 6),
    "loop blocked": Kind("worker", 12, 2 * TTL),
    "server stopped": Kind("server", 3, 2 * TTL),
    "server killed": Kind("server", 4),
    "DEBUG SLEEP": Kind("server", 3, 2 * TTL),
    "CLIENT PAUSE WRITE": Kind("server", 3, 2 * TTL),
    "CLIENT KILL normal": Kind("server", 10),
    "CLIENT KILL pubsub": Kind("server", 10),
    "SCRIPT FLUSH": Kind("server", 15),
    "out of memory": Kind("server", 4, TTL),
    "too few replicas": Kind("server", 4, TTL),
    "FLUSHALL": Kind("server", 4, loses=True),
    "server killed, data gone": Kind("server", 4, loses=True),
    "clock stepped forward": Kind("server", 3, 60.0, loses=True),
}


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

    def __str__(self) -> str:
        return "\n".join(map(str, self.strikes))


def draw(seed: int, seconds: float) -> Plan:
    """Return the plan of *seed*. Each has some kinds of fault only: where everything goes wrong, nothing gets done."""
    rng = random.Random(seed)
    loses = rng.random() < 0.4
    strikes = [
        strike
        for name, kind in KINDS.items()
        if (rng.random() < 0.5 or kind.loses) and (loses or not kind.loses)
        for strike in _strikes(rng, name, kind, seconds)
    ]
    killed = rng.sample(range(WORKERS), rng.randrange(WORKERS // 2))
    return Plan(seed, seconds, loses, tuple(sorted(strikes, key=lambda strike: strike.at)), tuple(killed))


def _strikes(rng: random.Random, name: str, kind: Kind, seconds: float) -> Iterator[Strike]:
    at = 0.0
    while True:
        at += rng.expovariate(kind.per_minute / 60)
        if at > seconds:
            return
        length = kind.longest * (rng.random() if rng.random() < 0.7 else 0.1 * rng.random())
        yield Strike(at, name, rng.randrange(WORKERS), length, rng.random() < 0.5)
