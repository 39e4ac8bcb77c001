"""Names held in modes: what goes together, after Gray, and told apart from the scripts; and C1 and C3."""

import itertools
from collections import defaultdict
from collections.abc import Iterable

from aiolocks._core.modes import EXCLUSIVE, SHARED, UPGRADE, UPGRADEABLE
from aiolocks.testing import HistoryEvent
from aiolocks.testing._history import Held, holds
from tests.scripts.shared_model import GO_WITH

_AS_GOOD_AS = {SHARED: {SHARED, UPGRADEABLE, EXCLUSIVE}}
"""What the server may have for a mode that somebody believes to hold: a downgrade is known here first."""

_WHOLE = (SHARED, EXCLUSIVE)
"""What a path is held with that lets its holder use all below it."""

FAMILIES = ("aiolocks:readwrite:", "aiolocks:hierarchy:")


def in_modes(base: str) -> bool:
    """Whether what a name is held with is a mode, and no number of permits."""
    return base.startswith(FAMILIES)


def together(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Return whether two tokens may hold their modes at one time: an upgrade only beside what it grew from.

    That may have gone on as shared since: fencing tokens tell the order of grants, and a downgrade is none.
    """
    for (token, mode), (grown, its_mode) in ((one, other), (other, one)):
        if its_mode == UPGRADE:
            return mode in (UPGRADEABLE, SHARED) and grown.startswith(token + "+")
    return other[1] in GO_WITH[one[1]]


def suffices(server: int, believed: int) -> bool:
    """Return whether the mode that the server knows of is what its holder believes, or more."""
    return server in _AS_GOOD_AS.get(believed, {believed})


def check_modes(history: Iterable[HistoryEvent], *, sane: bool) -> list[str]:
    """C1 and C3, of the events whose permits are modes; *sane*: leases are not lost on the server itself.

    As in `check_linearizable`, the server has numbered the grants, and each is put as early as it can have been.
    """
    by_name: dict[str, list[Held]] = defaultdict(list)
    for held in holds(history):
        by_name[held.start.name].append(held)
    wrong = [text for held in by_name.values() for text in (*_exclusion(held, sane), *_order(held, sane))]
    return wrong + (_below(by_name) if sane else [])


def _below(by_name: dict[str, list[Held]]) -> list[str]:
    """C1 of paths, whatever is held above them: whoever reads or writes one does so with all that lies below it."""
    whole = {name: [each for each in held if each.start.permits in _WHOLE] for name, held in by_name.items()}
    return [
        f"C1: held at one time: {above}; {below}"
        for name, held in whole.items()
        for other, others in whole.items()
        if other.startswith(name + "/")
        for above, below in itertools.product(held, others)
        if {above.start.permits, below.start.permits} != {SHARED} and _overlap(above, below)
    ]


def _exclusion(held: list[Held], sane: bool) -> Iterable[str]:
    live: list[Held] = []
    for new in held if sane else ():
        live = [other for other in live if not other.ended_by(new.start_ns)]
        yield from (f"C1: held at one time: {other}; {new}" for other in live if not _compatible(other, new))
        live.append(new)


def _order(held: list[Held], sane: bool) -> Iterable[str]:
    earlier: list[Held] = []
    point = float("-inf")
    for new in sorted(held, key=lambda each: each.start.fence):
        if new.asked_ns is not None:
            point = max(point, new.asked_ns)
        if sane:
            point = max([point, *(_end(other) for other in earlier if not _compatible(other, new))])
        if point > new.start_ns:
            yield f"C3: not in the order of fencing tokens: {new}, at {point / 1e9:.6f} at the earliest"
            point = new.start_ns
        earlier.append(new)


def _compatible(one: Held, other: Held) -> bool:
    return together((one.start.token, one.start.permits), (other.start.token, other.start.permits))


def _overlap(one: Held, other: Held) -> bool:
    return one.start_ns < _end(other) and other.start_ns < _end(one)


def _end(held: Held) -> float:
    return float("inf") if held.end is None else held.end.monotonic_ns
