"""The events of one acquisition, all under one number."""

from typing import TYPE_CHECKING, final

from .._core import events

if TYPE_CHECKING:
    from .context import Grantor


@final
class Report:
    """Emits the events of one acquisition. It exists only if there are listeners, or the log is at DEBUG level."""

    __slots__ = ("_grantor", "_number", "asked_at")

    def __init__(self, grantor: "Grantor", asked_at: float | None = None) -> None:
        self._grantor = grantor
        self._number = events.number()
        self.asked_at = asked_at
        """When the caller asked; None: nothing listened then."""

    def emit(self, kind: events.Kind, seconds: float, fence: int = 0) -> None:
        """Emit an event; *seconds* means what `events.Event` says of its kind."""
        grantor = self._grantor
        fields = (kind, grantor.name, grantor.kind, seconds, fence, self._number)
        events.emit(events.new(events.Event, fields))


def wanted() -> bool:
    """Whether events are to be reported now. The level of the log can change at any time."""
    return bool(events.listeners) or events.log.isEnabledFor(10)  # DEBUG
