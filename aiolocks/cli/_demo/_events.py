"""What happened, as records: everything that the demo draws and judges comes from here.

Times are CLOCK_MONOTONIC in nanoseconds, which compares across the processes of one host.
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
"""The server has been seen to have this worker in the queue."""
HELD: Final = "held"
RENEWED: Final = "renewed"
LEFT: Final = "left"
"""The body is over; the release comes after."""
STOPPED: Final = "stopped"
"""The body was cancelled."""
LOST: Final = "lost"
"""The block raised LeaseLostError."""
DIED: Final = "died"
"""A worker is about to be killed."""
DELETED: Final = "deleted"
"""A key is about to be deleted by hand."""
FAILED: Final = "failed"
"""A worker met an error that has no place in the demo."""
STALLED: Final = "stalled"
"""For so many seconds until now, the machine gave this worker's process no time."""
READY: Final = "ready"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to one worker. `fence` is 0 and `name` empty where they say nothing."""

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

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "Event":
        return cls(**json.loads(line))


Record = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker shall do: ask for the lock (or semaphore, when it has a limit) `name` once per hold."""

    name: str
    ttl: float
    holds: tuple[float, ...]
    """Seconds of each hold; the worker may be told to leave earlier."""
    limit: int = 0

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> "Order":
        fields = json.loads(line)
        fields["holds"] = tuple(fields["holds"])
        return cls(**fields)


LEAVE: Final = b"leave\n"
"""In place of an order: end the body that runs."""


@final
class Log:
    """All records so far, and a way to wait for one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._changed = asyncio.Event()

    def add(self, event: Event) -> None:
        """Record; any thread may."""
        self._events.append(event)
        self._loop.call_soon_threadsafe(self._changed.set)

    def in_order(self, name: str | None = None) -> list[Event]:
        """Return the records (of one lock or semaphore), in the order in which they happened."""
        chosen = [event for event in self._events if name is None or event.name == name]
        return sorted(chosen, key=lambda event: event.at)

    async def until(self, worker: str, event: str, name: str, count: int, seconds: float) -> bool:
        """Wait for the *count*-th such record; False when it does not come within *seconds*, or the worker fails."""
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
    """Return those of *events* that are of one of *kinds*."""
    return [event for event in events if event.event in kinds]
