"""Tables of the kinds of primitives: each is complete by the registry (`aiolocks/_core/kinds.py`), or an error at once.

A table that needs no value of its own for each kind is made of rows: `rows_where` of `support/primitives.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from aiolocks._core.kinds import KINDS, Kind

__all__ = ["KINDS", "IncompleteTableError", "Kind", "check", "complete", "families", "kinds_where", "leased"]

T = TypeVar("T")

Where = Callable[[Kind], bool]


class IncompleteTableError(AssertionError):
    """A table leaves out a kind without a reason, or has a kind or a reason that it should not have."""


def leased(kind: Kind) -> bool:
    return kind.leased


def kinds_where(where: Where = leased) -> list[str]:
    """Return the names of the kinds for which *where* is true: those with leases, if it is left out."""
    return [kind.name for kind in KINDS if where(kind)]


def families() -> list[str]:
    return list(dict.fromkeys(kind.family for kind in KINDS if kind.leased))


def complete(table: Mapping[str, T], names: Iterable[str], without: Mapping[str, str] | None = None) -> dict[str, T]:
    """Return *table* if it has a value for each of *names* but those that *without* gives a reason to leave out."""
    check(table, names, without or {})
    return dict(table)


def check(had: Iterable[str], names: Iterable[str], without: Mapping[str, str]) -> None:
    """Raise IncompleteTableError unless *had* and *without* together are *names*, and have none in common."""
    had, names = set(had), set(names)
    for wrong, says in (
        (names - had - without.keys(), "is missing: add it, or say in `without` why it is left out"),
        (had - names, "is no kind or row that belongs here"),
        (without.keys() - names, "is left out, but does not belong here in any case"),
        (without.keys() & had, "is left out, and is there all the same"),
        ({name for name, reason in without.items() if not reason.strip()}, "is left out without a reason"),
    ):
        if wrong:
            raise IncompleteTableError(f"{', '.join(map(repr, sorted(wrong)))} {says}")
