"""`note=` and `lease.note()`: what a lease is for, as other processes see it.

A request carries it, for the wait and for the lease, and sends nothing. The session publishes it once the lease or the
wait has lasted for a while (W23). So a note never decides what becomes of a lease.
"""

from typing import TYPE_CHECKING, final

from .._core.options import MAX_NOTE, Options
from .extension import Extension

if TYPE_CHECKING:
    from .lease_state import LeaseState


@final
class Note(Extension):
    """Carries a note. It is never changed, as the requests of a primitive share it."""

    for_parts = True

    def __init__(self, note: str) -> None:
        self.note = note


def note_of(options: Options) -> tuple[Note, ...]:
    """Return the extension that *options* ask for, if any."""
    return (Note(options.note),) if options.note else ()


def change_note(state: "LeaseState", text: str) -> None:
    """Give the lease another note, if it lasts; see `Lease.note`."""
    given: object = text
    if not isinstance(given, str):
        raise TypeError(f"the note must be a str, not {type(given).__name__}")
    if not state.validity.held:
        return
    own = (Note(text[:MAX_NOTE]),) if text else ()
    whole = state.request
    for request in (whole, *(part.request for part in whole.parts)):
        request.carry((*(each for each in request.extensions if not isinstance(each, Note)), *own))
    state.context.session.noted(whole)
