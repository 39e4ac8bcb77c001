"""What the history, the store and the server say about a run: C1 to C4, and P14 besides."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from redis.asyncio import Redis

from aiolocks import testing

from .faults import Loss
from .plan import LIMITS, LOCKS, NAMES, PER, STARTS, Plan
from .store import accepted, out_of_order

NOISE = {"memory": 2**21, "objects": 5000, "tasks": 10, "timers": 20, "descriptors": 8, "keys": 300}
"""What processes and the server are sampled for, and how much of it is no trend yet."""


@dataclass(slots=True)
class Evidence:
    """What is there to judge."""

    directory: Path
    plan: Plan
    losses: list[Loss]
    wrong: list[str]
    keys: dict[bytes, int]
    clients: list[str]


@dataclass(slots=True)
class Verdict:
    """What was wrong, and how much there was to go wrong."""

    violations: list[str]
    grants: int = 0
    lost: int = 0
    accepted: int = 0
    late: int = 0
    """Writes to locks' unchecked counters that a newer holder's had come before."""
    slowest: float = 0.0
    """Seconds until a fresh client had every name after all faults."""
    faults: Counter[str] = field(default_factory=Counter[str])


async def judge(evidence: Evidence, store: Redis) -> Verdict:
    """Return the verdict on a run that is over."""
    history = testing.read_history(evidence.directory / "history")
    events = as_promised(history, evidence.losses)
    writes = {name: await accepted(store, name) for name in NAMES}
    acquired = [event for event in history if event.event == "acquired"]
    violations = [
        *evidence.wrong,
        *testing.check_exclusion(events, LIMITS),
        *(
            text
            for name in NAMES  # no two grants may share a fencing token, nor one a write's with another token
            for text in testing.check_fencing([*writes[name], *(event for event in acquired if event.name == name)])
        ),
        *testing.check_linearizable(events, LIMITS),
        *([] if evidence.plan.strikes else _too_many_starts(history)),
        *testing.check_ended(history),
        *testing.check_residue(evidence.keys),
        *(f"C4: still connected: {client}" for client in evidence.clients),
        *(f"F21: a forked child believes to hold: {event}" for event in history if event.event == "child holds"),
        *_said(evidence.directory, {event.token for event in acquired}),
        *(f"{path.name}: {grown}" for path in evidence.directory.glob("samples-*") for grown in trends(path)),
    ]
    return Verdict(
        violations, grants=len(acquired), lost=sum(event.event == "lost" for event in history),
        accepted=sum(map(len, writes.values())), late=sum([await out_of_order(store, name) for name in LOCKS]),
        faults=Counter(strike.kind for strike in evidence.plan.strikes),
    )  # fmt: skip


def as_promised(history: list[testing.HistoryEvent], losses: list[Loss]) -> list[testing.HistoryEvent]:
    """Return what the checkers are to judge: *history* with each hold ended where no more is promised.

    A process that was killed believed in its leases no longer than it had noted. And a server that loses its data
    ends all leases that it had granted, which are told from later ones by their fencing tokens; of one that its
    holder learned of only afterwards, nothing is promised but its fencing token.
    """
    ends: list[testing.HistoryEvent] = []
    until: dict[str, int] = {}
    killed = {event.pid for event in history if event.event == "killed"}
    for event in history:
        if event.event == "until":
            until[event.token] = max(until.get(event.token, 0), event.monotonic_ns)
    known = []
    for event in history:
        if event.event in ("released", "lost", "killed"):
            known.append(event)
        elif event.event == "acquired":
            gone_ns = min(
                (loss.since_ns for loss in losses if event.fence <= loss.fence and event.name in loss.names),
                default=None,
            )
            if gone_ns is None or event.monotonic_ns < gone_ns:
                known.append(event)
                ends += [_lost(event, gone_ns)] if gone_ns is not None else []
                ends += [_lost(event, until[event.token])] if event.pid in killed and event.token in until else []
    return sorted([*known, *ends], key=lambda event: event.monotonic_ns)


def _lost(acquired: testing.HistoryEvent, at_ns: int) -> testing.HistoryEvent:
    return replace(acquired, monotonic_ns=max(at_ns, acquired.monotonic_ns), event="lost")


def _too_many_starts(history: list[testing.HistoryEvent]) -> list[str]:
    """W28: return each window of a rate limiter that has too many starts.

    Where a reply comes late and the release behind it is lost, a start counts for less than the window.
    """
    starts = [event.monotonic_ns for event in history if event.event == "started"]
    windows = [(late - early) / 1e9 for early, late in zip(starts, starts[STARTS:], strict=False)]
    return [f"W28: {STARTS + 1} starts within {window:.4f} s" for window in windows if window < PER]


def trends(path: Path) -> list[str]:
    """Return what has grown from sample to sample, by the medians of the second and of the last third.

    The first third is for warming up. What has grown by a tenth, and by more than its noise, is a trend.
    """
    samples = [json.loads(line) for line in path.read_text().splitlines()]
    third, wrong = len(samples) // 3, list[str]()
    for what, noise in NOISE.items() if third >= 3 else ():
        values = [sample[what] for sample in samples if what in sample]
        before, after = median(values[third:-third] or [0]), median(values[-third:] or [0])
        if after > 1.1 * before and after > before + noise:
            wrong.append(f"{what} grew from {before:g} to {after:g}")
    return wrong


def _said(directory: Path, tokens: set[str]) -> list[str]:
    """Return what the workers should not have printed or logged."""
    wrong = [f"{path.name}: {text}" for path in directory.glob("stderr-*") if (text := path.read_text())]
    for path in directory.glob("messages-*"):
        text = path.read_text()
        wrong += [f"{path.name}: {line}" for line in text.splitlines() if line.startswith(("ERROR", "CRITICAL"))]
        wrong += [f"P14: a token in {path.name}" for token in tokens if token in text]
    return wrong
