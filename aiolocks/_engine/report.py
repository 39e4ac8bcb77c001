"""The events of one acquisition, all under one number."""

import contextlib
from typing import TYPE_CHECKING, final

from .._core import events
from .._core.untyped import make_tuple
from .extension import Extension

if TYPE_CHECKING:
    from .context import Grantor
    from .request import Request

Kind = events.Kind


@final
class Report(Extension):
    """Emits the events of one acquisition. It exists only if there are listeners, or the log is at DEBUG level.

    The request carries it while the caller waits. Its state is whether it has still to report that. Invariant: the
    number of the acquisition, and when the caller asked, do not change.
    """

    def __init__(self, grantor: "Grantor", asked_at: float | None = None, *, waits: bool = False) -> None:
        """*asked_at* is None if nothing listened when the caller asked. *waits*: report when others are in the way."""
        self._grantor = grantor
        self._number = events.number()
        self._asked_at = asked_at
        self._waits = waits

    def emit(self, kind: Kind, request: "Request", seconds: float, fence: int = 0) -> None:
        """Emit an event; *seconds* means what `events.Event` says of its kind."""
        grantor = self._grantor
        note = request.note or None if request.extensions else None
        fields = (kind, grantor.name, grantor.kind, seconds, fence, self._number, note)
        events.emit(make_tuple(events.Event, fields))

    def waited(self, request: "Request", now: float) -> float:
        """Return how long the caller has waited: since it asked, or since its first request left."""
        since = request.asked_at if self._asked_at is None else self._asked_at
        return 0.0 if since is None else now - since

    def on_busy(self, request: "Request") -> None:
        if self._waits:
            self._waits = False
            self.emit("waiting", request, self.waited(request, self._grantor.context.clock()))

    def held(self) -> None:
        return None

    def emit_end(self, request: "Request", kind: Kind) -> None:
        """Report that the acquisition ended without a lease."""
        self._waits = False
        self.emit(kind, request, self.waited(request, self._grantor.context.clock()))

    def emit_failure(self, request: "Request", error: BaseException, *, late: bool) -> None:
        """Report that the acquisition ended with *error*; *late* if that is the caller's timeout."""
        if isinstance(error, GeneratorExit):  # the coroutine is destroyed, in any thread, and perhaps after its loop
            with contextlib.suppress(RuntimeError):
                self._grantor.context.loop.call_soon_threadsafe(self.emit_end, request, "cancelled")
        else:
            kind: Kind = "cancelled" if not isinstance(error, Exception) else "timed_out" if late else "failed"
            self.emit_end(request, kind)


def begin(grantor: "Grantor", request: "Request") -> Report:
    report = Report(grantor, grantor.context.clock(), waits=request.wait)
    if request.wait:
        request.carry((*request.extensions, report))
    return report
