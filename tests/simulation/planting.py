"""What a defect is, and short ways to write one down, by the markers that `tests.support.garden` knows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from tests.support.garden import Garden, condition

from .things import FIRST_KINDS

Plant = Callable[[Garden], None]


@final
@dataclass(frozen=True, slots=True)
class Defect:
    """How it is planted, the beginnings of what checks say that may find it, and what is fought over, and where."""

    plant: Plant
    caught_by: tuple[str, ...]
    kinds: tuple[str, ...] = FIRST_KINDS
    cluster: bool = False
    marks: bool = False


def marked(plant: Plant, *caught_by: str, kind: str = "lock") -> Defect:
    """Return a defect that is looked for where programs revoke, hand off, or start under a rate."""
    return Defect(plant, caught_by, (kind,), marks=True)


def instead(marker: str, new: str) -> Plant:
    """Put *new* in place of what is marked: a statement, or the head of an `if` or a loop."""
    return lambda garden: garden.at(marker, lambda _: new)


def without(marker: str) -> Plant:
    return instead(marker, "")


def never(marker: str) -> Plant:
    """Have the condition that is marked be false."""
    return lambda garden: garden.at(marker, condition(False))


def always(marker: str) -> Plant:
    """Have the condition that is marked be true."""
    return lambda garden: garden.at(marker, condition(True))


def before(marker: str, new: str) -> Plant:
    """Put *new* before what is marked."""
    return lambda garden: garden.at(marker, lambda old: f"{new}\n{old}")


def after(marker: str, new: str) -> Plant:
    """Put *new* after what is marked."""
    return lambda garden: garden.at(marker, lambda old: f"{old}\n{new}")


def both(*plants: Plant) -> Plant:
    def plant(garden: Garden) -> None:
        for each in plants:
            each(garden)

    return plant
