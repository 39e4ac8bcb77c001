"""The records of all events, from which the demo draws and judges.

Times are CLOCK_MONOTONIC in nanoseconds, one clock for all processes of a host.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, final

ASKED: Final = "asked"
"""A worker is about to ask for a lease."""
QUEUED: Final = "queued"
"""The server has this worker in the queue."""
HELD: Final = "held"
RENEWED: Final = "renewed"
LEFT: Final = "left"
"""The body has ended; the release follows."""
STOPPED: Final = "stopped"
"""The body was cancelled."""
LOST: Final = "lost"
"""The block raised LeaseLostError."""
DIED: Final = "died"
"""A worker is about to be killed."""
DELETED: Final = "deleted"
"""A key is about to be deleted by hand."""
FAILED: Final = "failed"
"""A worker had an unexpected error."""
STALLED: Final = "stalled"
"""The process of this worker did not run for `seconds`, until now."""
READY: Final = "ready"


@dataclass(frozen=True, slots=True)
class Event:
    """One event of one worker. `fence` is 0 and `name` is empty if they do not apply."""

    at: int
    worker: str
    pid: int
    event: str
    name: str = ""
    fence: int = 0
    seconds: float = 0.0
    note: str = ""

    @classmethod
    def now(
        cls, worker: str, event: str, name: str = "", *, fence: int = 0, seconds: float = 0.0, note: str = ""
    ) -> "Event":
        return cls(time.monotonic_ns(), worker, os.getpid(), event, name, fence, seconds, note)

    @classmethod
    def from_line(cls, line: bytes) -> "Event":
        return cls(**json.loads(line))


Record = Callable[[Event], None]


def to_line(record: "Event | Order") -> bytes:
    return json.dumps(asdict(record)).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a worker: acquire the lock (or semaphore, with a limit) `name` once per hold."""

    name: str
    ttl: float
    holds: tuple[float, ...]
    """Seconds of each hold. `END_BODY` ends a hold early."""
    limit: int = 0

    @classmethod
    def from_line(cls, line: bytes) -> "Order":
        fields = json.loads(line)
        fields["holds"] = tuple(fields["holds"])
        return cls(**fields)


END_BODY: Final = b"end\n"
"""Line instead of an order: end the running body."""


@final
class Log:
    """All records so far. `until` waits for one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._changed = asyncio.Event()

    def add(self, event: Event) -> None:
        """Add a record, from any thread."""
        self._events.append(event)
        self._loop.call_soon_threadsafe(self._changed.set)

    def in_order(self, name: str | None = None) -> list[Event]:
        """Return all records, or those of one name, in order of time."""
        chosen = [event for event in self._events if name is None or event.name == name]
        return sorted(chosen, key=lambda event: event.at)

    async def until(self, worker: str, event: str, name: str, count: int, seconds: float) -> bool:
        """Wait for the *count*-th such record. Return False after *seconds*, or if the worker fails."""
        try:
            async with asyncio.timeout(seconds):
                while self._number_of(worker, event, name) < count:
                    if self._number_of(worker, FAILED, name):
                        return False
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _number_of(self, worker: str, event: str, name: str) -> int:
        return sum((seen.worker, seen.event, seen.name) == (worker, event, name) for seen in self._events)


def of_kind(events: Sequence[Event], *kinds: str) -> list[Event]:
    """Return the *events* of any of *kinds*."""
    return [event for event in events if event.event in kinds]
