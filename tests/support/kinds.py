"""Tables of the kinds of primitives: each is complete by the registry (`aiolocks/_core/kinds.py`), or an error at once.

A table that needs no value of its own for each kind is made of rows: `rows_where` of `support/primitives.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from aiolocks._core import kinds as registry
from aiolocks._core.kinds import Kind

__all__ = [
    "EVERY_KIND", "KINDS", "IncompleteTableError", "Kind", "check", "complete", "every_name", "families",
    "kinds_where", "leased",
]  # fmt: skip

EVERY_KIND = registry.KINDS

KINDS = tuple(kind for kind in EVERY_KIND if not kind.loop)
"""The kinds of which tables are made. A loop around a lease is left out here, for all tables that do not ask for it: it
has no `acquire`, and its lease is that of a lock, which has the same scripts. What it promises of its own is tested in
`primitives/`, in a file such as `test_once.py`."""

T = TypeVar("T")

Where = Callable[[Kind], bool]


class IncompleteTableError(AssertionError):
    """A table leaves out a kind without a reason, or has a kind or a reason that it should not have."""


def leased(kind: Kind) -> bool:
    return kind.leased


def kinds_where(where: Where = leased) -> list[str]:
    """Return the names of the kinds for which *where* is true: those with leases, if it is left out."""
    return [kind.name for kind in KINDS if where(kind)]


def every_name() -> list[str]:
    """Return the names of all kinds, with the loops: for what is promised of keys."""
    return [kind.name for kind in EVERY_KIND]


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
