"""The record of each acquisition of a contended lock or semaphore, and checks on all records together.

All instants are nanoseconds of CLOCK_MONOTONIC, which is one clock for all processes of a host.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from aiolocks.testing import HistoryEvent, check_exclusion

NEVER = 2**62
"""The instant of a grant that did not come before the end."""

SLACK_NS = 5_000_000
"""Requests of different processes that are closer than this have no order: asking takes time too."""

_FIELDS = 6


@dataclass(frozen=True, slots=True)
class Acquisition:
    """One request and its outcome."""

    process: int
    task: int
    order: int
    """Its number among the requests of its process, in order of asking."""
    asked: int
    granted: int
    released: int
    """Noted before the release was sent."""
    fence: int = 0
    """The fencing token; 0 if there is none."""


def unpacked(process: int, data: bytes) -> list[Acquisition]:
    """Return what one process recorded, as 64-bit ints: task, order, asked, granted, released, fence of each."""
    values = array("q")
    values.frombytes(data)
    return [Acquisition(process, *values[start : start + _FIELDS]) for start in range(0, len(values), _FIELDS)]


def overlaps(
    acquisitions: Iterable[Acquisition], limit: int = 1, weight: Callable[[Acquisition], int] = lambda _: 1
) -> int:
    """Return how many grants came while others held too much; a correct lock has none.

    Args:
        acquisitions: Those of all processes.
        limit: How much may be held at once; for a read-write lock, the number of tasks.
        weight: How much one acquisition holds; for a read-write lock, 1 for a reader and all for a writer.
    """
    history: list[HistoryEvent] = []
    for number, one in enumerate(acquisitions):
        if one.granted != NEVER:
            history.append(HistoryEvent(one.granted, one.process, "acquired", str(number), permits=weight(one)))
            history.append(HistoryEvent(one.released, one.process, "released", str(number)))
    return len(check_exclusion(history, limit))


def overtaking(acquisitions: Sequence[Acquisition], *, by_fence: bool = False) -> set[Acquisition]:
    """Return the acquisitions that were granted while a request older by over 5 ms was waiting.

    Args:
        acquisitions: Those of all processes.
        by_fence: Use the order of the server's grants, if there are fencing tokens to show it. Several grants of a
            semaphore can be on their way at once, over different connections, so their order of arrival says nothing.
    """
    found = _with_oldest_waiting(acquisitions, [one.asked for one in acquisitions], by_fence)
    return {one for one, oldest in found if oldest < one.asked - SLACK_NS}


def overtaking_within(acquisitions: Sequence[Acquisition], *, by_fence: bool = False) -> int:
    """Return how many were granted while an older request of the same process was waiting, however little older."""
    processes: dict[int, list[Acquisition]] = {}
    for one in acquisitions:
        processes.setdefault(one.process, []).append(one)
    return sum(
        oldest < one.order
        for members in processes.values()
        for one, oldest in _with_oldest_waiting(members, [member.order for member in members], by_fence)
    )


def _with_oldest_waiting(
    acquisitions: Sequence[Acquisition], ages: Sequence[int], by_fence: bool
) -> list[tuple[Acquisition, int]]:
    """Pair each grant with the least age (when it asked, or its number) among requests granted later, or never."""

    def instant(pair: tuple[Acquisition, int]) -> int:
        one, _ = pair
        return one.fence if by_fence and one.fence else one.granted

    found: list[tuple[Acquisition, int]] = []
    least = NEVER
    for one, age in sorted(zip(acquisitions, ages, strict=True), key=instant, reverse=True):
        if one.granted != NEVER:
            found.append((one, least))
        least = min(least, age)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which *share* (0 to 1) of the *values* lie: nearest rank, of sorted ones."""
    return values[max(math.ceil(share * len(values)) - 1, 0)]


def repeated(acquisitions: Iterable[Acquisition]) -> tuple[int, int]:
    """Return how many grants went to the task that had held it just before, and how many there were."""
    grants = sorted((one for one in acquisitions if one.granted != NEVER), key=lambda one: one.granted)
    same = sum((one.process, one.task) == (after.process, after.task) for one, after in pairwise(grants))
    return same, len(grants)
