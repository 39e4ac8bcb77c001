"""Judges the recorded events alone. Each check reports the figure behind its verdict.

Exclusion, limits and fencing tokens are judged by the checkers of `aiolocks.testing`.

A hold lasts from the first step of a body to its last one, or to the kill of its worker. It is shorter than the lease,
because the work of holders must not overlap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from ._events import ASKED, DELETED, DIED, FAILED, HELD, LEFT, LOST, QUEUED, RENEWED, STALLED, STOPPED, Event, of_kind

if TYPE_CHECKING:
    from ...testing import HistoryEvent

ALLOWANCE = 0.2
"""Maximum time in seconds from the end of a TTL until the next holder has the lock."""

_NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a property held, with the figure that shows it."""

    title: str
    ok: bool
    figure: str


@dataclass(frozen=True, slots=True)
class Hold:
    """A body's time with a lease, in nanoseconds."""

    name: str
    worker: str
    fence: int
    asked: int
    start: int
    end: int


def holds_of(events: Sequence[Event]) -> list[Hold]:
    """Return the holds in the order of their start. A hold without an end lasts for ever."""
    holds: list[Hold] = []
    for at, event in enumerate(events):
        if event.event == HELD:
            before = [other.at for other in events[:at] if _same(other, event) and other.event == ASKED]
            ends = [other.at for other in events[at:] if _same(other, event) and other.event in (LEFT, STOPPED, DIED)]
            end = ends[0] if ends else _NEVER
            holds.append(Hold(event.name, event.worker, event.fence, before[-1] if before else 0, event.at, end))
    return holds


def _history(holds: Sequence[Hold]) -> "list[HistoryEvent]":
    """Return *holds* as the events that the checkers of `aiolocks.testing` judge.

    That package is imported in functions, because its import would slow the start of the other commands.
    """
    from ...testing import HistoryEvent

    workers = sorted({hold.worker for hold in holds})
    history: list[HistoryEvent] = []
    for number, hold in enumerate(holds):
        lease: dict[str, Any] = {"token": str(number), "fence": hold.fence, "name": hold.name}
        worker = workers.index(hold.worker)
        history.append(HistoryEvent(hold.start, worker, "acquired", asked_ns=hold.asked, **lease))
        if hold.end != _NEVER:
            history.append(HistoryEvent(hold.end, worker, "released", **lease))
    return history


def check_order(events: Sequence[Event]) -> Verdict:
    """Workers are served in the order of their requests. Each was in the queue before the next one asked."""
    asked = of_kind(events, ASKED)
    served = [event.worker for event in of_kind(events, HELD)]
    order = [event.worker for event in asked]
    in_place = {event.worker: event.at for event in of_kind(events, HELD, QUEUED)[::-1]}
    unsure = [later.worker for earlier, later in pairwise(asked) if in_place.get(earlier.worker, _NEVER) > later.at]
    if unsure:
        return Verdict("order", False, f"{unsure[0]} asked before its predecessor was seen in the queue")
    if order != served or len(order) < 2:
        return Verdict("order", False, f"asked: {_listed(order)}; served: {_listed(served)}")
    return Verdict("order", True, f"{len(served)} asked one after another, served in that order")


def check_exclusion(events: Sequence[Event]) -> Verdict:
    """No two holds of one lock overlap."""
    from ...testing import check_exclusion

    holds = holds_of(events)
    gaps: list[tuple[int, Hold, Hold]] = []
    for _, group in groupby(sorted(holds, key=lambda hold: (hold.name, hold.start)), lambda hold: hold.name):
        gaps += [(after.start - before.end, before, after) for before, after in pairwise(group)]
    if not gaps:
        return Verdict("exclusion", False, "no two holds to compare")
    gap, before, after = min(gaps, key=lambda entry: entry[0])
    if check_exclusion(_history(holds)):
        return Verdict("exclusion", False, f"{after.worker} held while {before.worker} still did")
    return Verdict("exclusion", True, f"no two of {len(holds)} holds overlap (closest {gap / 1e6:.1f} ms apart)")


def check_depth(events: Sequence[Event], limit: int) -> Verdict:
    """Never more than *limit* hold at the same time, and the limit was reached."""
    from ...testing import check_exclusion

    holds = holds_of(events)
    asked = len(of_kind(events, ASKED))
    if check_exclusion(_history(holds), limit):
        return Verdict("limit", False, f"more than {limit} held at the same time")
    if not check_exclusion(_history(holds), limit - 1):
        return Verdict("limit", False, f"the limit of {limit} was never reached ({len(holds)} holds)")
    if len(holds) != asked:
        return Verdict("limit", False, f"{asked} asked, but only {len(holds)} held")
    return Verdict("limit", True, f"up to {limit} held at once, and never more ({len(holds)} holds)")


def check_kept(events: Sequence[Event], ttl: float) -> Verdict:
    """The first holder keeps its lease for at least three TTLs, to the end of its work, while another worker waits."""
    holds = holds_of(events)
    lost = of_kind(events, LOST, STOPPED)
    if lost:
        return Verdict("renewal", False, f"{lost[0].worker} lost its lease: {lost[0].note or 'stopped'}")
    if len(holds) != 2 or not holds[0].start < holds[1].asked < holds[0].end < _NEVER:
        return Verdict("renewal", False, "no worker waited while the lease outlived its TTL")
    first, second = holds
    kept = (first.end - first.start) / 1e9
    renewals = sum(event.worker == first.worker for event in of_kind(events, RENEWED))
    waited = (second.start - second.asked) / 1e9
    figure = f"held {kept:.1f} s = {kept / ttl:.1f} TTLs, {renewals} renewals; {second.worker} waited {waited:.1f} s"
    return Verdict("renewal", kept >= 3 * ttl and second.start > first.end, figure)


def check_return(events: Sequence[Event], ttl: float) -> Verdict:
    """After the holder's death, a waiter has the lock within the TTL."""
    holds = holds_of(events)
    deaths = of_kind(events, DIED)
    if len(holds) != 2 or len(deaths) != 1 or holds[0].end != deaths[0].at or holds[1].asked > deaths[0].at:
        return Verdict("return", False, "no holder died while one waiter waited, who then got the lock")
    delay = (holds[1].start - deaths[0].at) / 1e9
    ok, bound = _within(events, delay, ttl, deaths[0].at, holds[1].start)
    return Verdict("return", ok and delay > 0, f"{holds[1].worker} had it {delay:.2f} s after the death ({bound})")


def check_loss(events: Sequence[Event], ttl: float) -> Verdict:
    """After the lease was taken away, the body is stopped within the TTL and the block raises LeaseLostError."""
    deleted, stopped, lost = (of_kind(events, kind)[:1] for kind in (DELETED, STOPPED, LOST))
    if not deleted or not stopped or not lost:
        return Verdict("loss", False, "no body was stopped with LeaseLostError after its lease was taken away")
    delay = (stopped[0].at - deleted[0].at) / 1e9
    ok, bound = _within(events, delay, ttl, deleted[0].at, stopped[0].at)
    finished = any(event.worker == lost[0].worker for event in of_kind(events, LEFT))
    ok = ok and delay > 0 and stopped[0].at <= lost[0].at and stopped[0].fence == lost[0].fence and not finished
    return Verdict("loss", ok, f"LeaseLostError, body stopped {delay:.2f} s after DEL ({bound})")


def check_fences(events: Sequence[Event], limits: Mapping[str, int]) -> Verdict:
    """Every grant has a larger fencing token than all earlier grants.

    Args:
        limits: Limit of each semaphore; other names are locks.
    """
    from ...testing import check_fencing, check_linearizable

    holds = holds_of(events)
    history = _history(holds)
    wrong = check_fencing(history) + check_linearizable(history, limits)
    figure = wrong[0] if wrong else f"{len(holds)} grants, each with a larger token than the ones before"
    return Verdict("fencing", not wrong and len(holds) > 1, figure)


def check_surprises(events: Sequence[Event]) -> Verdict:
    """No worker had an error, and only the lease that was taken away was lost."""
    taken = {event.name for event in of_kind(events, DELETED)}
    surprises = [event for event in of_kind(events, FAILED, LOST) if event.event == FAILED or event.name not in taken]
    if surprises:
        return Verdict("surprises", False, f"{surprises[0].worker}: {surprises[0].note}")
    return Verdict("surprises", bool(taken), "no error, and only the lease taken away was lost")


def _within(events: Sequence[Event], delay: float, ttl: float, start: int, end: int) -> tuple[bool, str]:
    """Return whether *delay* is within the TTL plus the time for which the machine stalled, and the bound in words."""
    late = end + round(0.1e9)  # a stall is recorded a little after it ends
    stalls = [event.seconds for event in of_kind(events, STALLED) if start <= event.at <= late]
    stall = max(stalls, default=0.0)
    bound = f"TTL {ttl:g} s" if delay <= ttl or not stall else f"TTL {ttl:g} s, machine stalled {stall:.1f} s"
    return delay <= ttl + ALLOWANCE + stall, bound


def _same(one: Event, other: Event) -> bool:
    return one.worker == other.worker and one.name == other.name


def _listed(workers: Sequence[str]) -> str:
    return " ".join(workers) or "no worker"
