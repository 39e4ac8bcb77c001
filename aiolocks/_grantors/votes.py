"""Pure arithmetic of answers from several servers: when enough have said yes, and when that cannot come any more."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import final


def quorum_of(size: int) -> int:
    """Return how many of *size* servers are a majority, so that any two such sets have one in common."""
    return size // 2 + 1  # defect: P8-quorum


@final
@dataclass(slots=True, eq=False)
class VoteCount:
    """Counts yes, no and failures of *size* questions of which *needed* must be answered yes.

    *tell* gets the verdict once, as soon as no further answer can change it: True, False when too many said no, or
    the last failure when the answers that are missing leave it open; *patient*: the latter not before the last answer.
    """

    size: int
    needed: int
    tell: Callable[[bool | Exception], None] = lambda _: None
    patient: bool = False
    yes: int = 0
    no: int = 0
    failures: list[Exception] = field(default_factory=list[Exception])
    told: bool = False

    def note(self, answer: bool | Exception) -> None:
        """Count one answer."""
        if isinstance(answer, Exception):
            self.failures.append(answer)
        elif answer:
            self.yes += 1
        else:
            self.no += 1
        verdict = self.verdict()
        if verdict is not None and not self.told:
            self.told = True
            self.tell(verdict)

    def verdict(self) -> bool | Exception | None:
        """Return what is certain; None while it depends on answers to come."""
        pending = self.size - self.yes - self.no - len(self.failures)
        most_no = self.size - self.needed
        if self.yes >= self.needed:
            return True
        if self.no > most_no:
            return False
        open_for_good = self.yes + pending < self.needed and self.no + pending <= most_no
        if open_for_good and not (self.patient and pending):
            return self.failures[-1]
        return None


@final
@dataclass(slots=True, eq=False)
class Vote:
    """The votes of *size* servers on one attempt, each by the server's number."""

    size: int
    granted: dict[int, int] = field(default_factory=dict[int, int])
    """With its fencing token."""
    busy: dict[int, float] = field(default_factory=dict[int, float])
    """With the seconds that the lease in the way has left, or the fencing token that is in the way."""
    failed: dict[int, Exception] = field(default_factory=dict[int, Exception])

    @property
    def quorum(self) -> int:
        return quorum_of(self.size)

    @property
    def pending(self) -> int:
        return self.size - len(self.granted) - len(self.busy) - len(self.failed)

    @property
    def won(self) -> bool:
        return len(self.granted) >= self.quorum

    @property
    def answered(self) -> bool:
        """Enough servers have answered for a lease, had they not been busy."""
        return len(self.granted) + len(self.busy) >= self.quorum

    @property
    def decided(self) -> bool:
        """Whether it is won, or cannot be won any more and it is known whether enough answer."""
        possible = len(self.granted) + self.pending >= self.quorum
        answerable = len(self.granted) + len(self.busy) + self.pending >= self.quorum
        return self.won or (not possible and (self.answered or not answerable))

    def free_after(self) -> float:
        """Return the seconds after which a quorum is free if its leases are neither renewed nor released."""
        missing = self.quorum - len(self.granted)
        waits = sorted(self.busy.values())
        return waits[min(missing, len(waits)) - 1] if missing > 0 and waits else 0.0


def next_fence(answers: Iterable[float]) -> int:
    """Return the fencing token to propose after servers have refused one, each with a larger one that it knows."""
    return int(max(answers)) + 1
