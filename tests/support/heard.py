"""Everything that is told by `aiolocks.events` while a test runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from aiolocks.events import Event, on_event


@final
class Heard(list[Event]):
    """Events, oldest first."""

    def kinds(self, *but: str) -> list[str]:
        """Return what has happened, without the kinds that are not looked at."""
        return [event.kind for event in self if event.kind not in but]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self if event.kind == kind]


@contextmanager
def hearing() -> Iterator[Heard]:
    heard = Heard()
    unsubscribe = on_event(heard.append)
    try:
        yield heard
    finally:
        unsubscribe()
