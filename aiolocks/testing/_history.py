"""A history: the events that each holder saw, in order of time, for the checkers to judge.

Several processes of one host can write it, because CLOCK_MONOTONIC is one clock for all of them. A holder records
`acquired` after the grant, and `released` or `lost` before another process can know of the end. So leases that overlap
in the history did overlap.
"""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TypeAlias, final

from .._engine.lease import Lease

ACQUIRED, RELEASED, LOST, KILLED = "acquired", "released", "lost", "killed"
ACCEPTED, REFUSED = "accepted", "refused"
LIMIT = "limit"
BUSY, TIMEOUT, FAILED = "busy", "timeout", "failed"

Log: TypeAlias = "str | os.PathLike[str]"


@final
@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event. The checkers ignore kinds of event that are not listed here.

    Attributes:
        monotonic_ns: Time of the event, by CLOCK_MONOTONIC.
        pid: Process of the holder or caller.
        event: "acquired", "released", "lost". "killed": the process was killed, with all its leases. "accepted",
            "refused": the answer of a resource that checks fencing tokens. "limit": from now on *permits* is the limit
            of the semaphore. "busy": a call that asked once ended without a lease, because the name was held.
            "timeout": a call waited and gave up. "failed": a call was cancelled or raised another error, so it may have
            been granted a lease.
        token: The lease's token.
        fence: The lease's fencing token.
        name: The name of the lock or semaphore.
        permits: Number of a semaphore's permits that the lease has.
        asked_ns: Time of the request that led to this event, or None if it was not recorded.
    """

    monotonic_ns: int
    pid: int
    event: str
    token: str = ""
    fence: int = 0
    name: str = ""
    permits: int = 1
    asked_ns: int | None = None

    def __str__(self) -> str:
        what = f"{self.event} {self.name!r}" if self.name else self.event
        fence = f" with fencing token {self.fence}" if self.fence else ""
        permits = f", {self.permits} permits" if self.permits != 1 else ""
        return f"process {self.pid} {what}{fence}{permits} at {self.monotonic_ns / 1e9:.6f}"


@final
@dataclass(frozen=True, slots=True)
class Held:
    """One lease as its holder saw it, from its grant to its end. `end` is None if no end was recorded."""

    start: HistoryEvent
    end: HistoryEvent | None

    @property
    def start_ns(self) -> int:
        """Time when the holder knew of the grant."""
        return self.start.monotonic_ns

    @property
    def asked_ns(self) -> int | None:
        """Time of the request, which was before the grant."""
        return self.start.asked_ns

    def ended_by(self, at_ns: float) -> bool:
        """Whether it was over at *at_ns*. Another lease may begin in the same nanosecond."""
        return self.end is not None and self.end.monotonic_ns <= at_ns

    def __str__(self) -> str:
        if self.end is None:
            return f"{self.start} and never released it"
        return f"{self.start} and {self.end.event} at {self.end.monotonic_ns / 1e9:.6f}"


@final
class Recorder:
    """Append events to a file, each by one write, so that several processes can share the file.

    ::

        recorder = Recorder("history.jsonl")
        asked = time.monotonic_ns()
        async with Lock(redis, "orders:42") as lease:
            recorder.record("acquired", lease, asked_ns=asked)
            try:
                ...
            finally:
                recorder.record("released" if lease.held else "lost", lease)

    Record a call that ends without a lease by the name, for `check_linearizable`::

        asked = time.monotonic_ns()
        if await lock.try_acquire() is None:
            recorder.record("busy", name=lock.name, asked_ns=asked)

    A holder that was stopped (SIGSTOP, a blocked loop) records its loss only when it runs again. Pass the end of its
    lease as *at_ns*: the time of its last check plus the `lease.remaining()` of that check.

    The file contains tokens. Anyone who reads it can use the leases while they last.
    """

    def __init__(self, path: Log) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def record(
        self,
        event: str,
        lease: Lease | None = None,
        *,
        permits: int = 1,
        name: str = "",
        asked_ns: int | None = None,
        at_ns: int | None = None,
        pid: int | None = None,
    ) -> None:
        """Record *event* of *lease*, by default now and in this process."""
        entry = HistoryEvent(
            time.monotonic_ns() if at_ns is None else at_ns,
            os.getpid() if pid is None else pid,
            event,
            "" if lease is None else lease.token,
            0 if lease is None else lease.fencing_token,
            name if lease is None else lease.name,
            permits,
            asked_ns,
        )
        os.write(self._fd, json.dumps(asdict(entry)).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_history(path: Log) -> list[HistoryEvent]:
    """Return all events in order of time. An unfinished last line is left out: a process can still be writing it."""
    with open(path, "rb") as log:
        *lines, last = log.read().split(b"\n")
    events = [HistoryEvent(**json.loads(line)) for line in lines]
    with suppress(ValueError):  # it is empty, or half an event
        events.append(HistoryEvent(**json.loads(last)))
    return in_order(events)


def in_order(events: Iterable[HistoryEvent]) -> list[HistoryEvent]:
    """Return *events* in order of time. Events of one instant stay in the order in which they were recorded."""
    return sorted(events, key=lambda event: event.monotonic_ns)


def holds(events: Iterable[HistoryEvent]) -> list[Held]:
    """Return all leases, in order of their start.

    Raises:
        ValueError: One process acquired twice with the same token, without an end between.
    """
    finished: list[Held] = []
    begun: dict[tuple[int, str, str], HistoryEvent] = {}
    for event in in_order(events):
        key = (event.pid, event.name, event.token)
        if event.event == ACQUIRED:
            if key in begun:
                raise ValueError(f"one token was acquired twice: {begun[key]}, and {event}")
            begun[key] = event
        elif event.event in (RELEASED, LOST) and key in begun:
            finished.append(Held(begun.pop(key), event))
        elif event.event == KILLED:
            theirs = [other for other in begun if other[0] == event.pid]
            finished += [Held(begun.pop(other), event) for other in theirs]
    finished += [Held(start, None) for start in begun.values()]
    return sorted(finished, key=lambda held: held.start_ns)
