"""The table of rules: for each clause a check, and defects that switch it off, with each of which the check must fail.

A check is a function named as what it shows; its docstring names the rule. It takes what it needs by the name of its
parameters: `scripts` (one script at a time on a real server), `scene` (whole programs in virtual time), `nodes` (the
same on a Cluster), `replicated` (a primary with a replica), `kind` (which primitive it is).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from tests.simulation.planting import Plant

LOCK = ("lock",)
SEMAPHORE = ("semaphore",)
BOTH = (*LOCK, *SEMAPHORE)


@final
@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of a rule, for one primitive."""

    rule: str
    check: Callable[..., None]
    kind: str
    defects: tuple[Plant, ...]

    def __str__(self) -> str:
        return f"{self.rule} {self.check.__name__} {self.kind}"


CLAUSES: list[Clause] = []


def clause(rule: str, *defects: Plant, kinds: tuple[str, ...] = BOTH) -> Callable[[Callable[..., None]], Any]:
    """Add a check to the table; each of *defects* alone must make it fail."""

    def add(check: Callable[..., None]) -> Callable[..., None]:
        assert defects, f"{check.__name__} has nothing that makes it fail"
        assert check.__doc__ is not None
        assert check.__doc__.startswith(f"{rule}: "), f"{check.__name__} does not name its rule"
        CLAUSES.extend(Clause(rule, check, kind, defects) for kind in kinds)
        return check

    return add
