"""What a request carries beyond the usual: an option is one class here, or in the module of its primitive.

The engine and the grantors know this class, and none of the options. An extension adds arguments to the request's
script, and reads its part of the reply.
"""

from collections.abc import Sequence
from typing import Any

from .._core.errors import LockError


class Extension:
    """Adds nothing. Subclasses override what they need."""

    for_parts = False
    """Whether each part of a lease on several names or servers carries it too."""
    answered_briefly = True
    """Whether a short reply says enough to a request that joins other waiters."""

    def arguments(self, *, again: bool = False) -> tuple[bytes | int, ...]:
        """Return the arguments that this attempt takes beyond the usual ones; *again*: of what was granted already."""
        return ()

    def queue_word(self) -> bytes:
        """Return what stands behind the usual terms in the queue, with a space in front."""
        return b""

    def not_run(self, args: Sequence[Any]) -> None:
        """Note that an attempt with these arguments was not carried out, and will not be."""

    def on_reply(self, args: Sequence[Any], reply: Sequence[Any] | int) -> None:
        """Read the reply to an attempt with these arguments; a number is the short reply that it waits.

        Raises:
            RuntimeError: Waiting would never end.
        """

    def objection(self, limit: int) -> RuntimeError | None:
        """Return why waiting would never end under that limit, if so."""
        return None

    def refusal(self, amount: int) -> LockError | None:
        """Return the error for a request that can never be granted. None: it asks for more than *amount* permits."""
        return None

    def other_obstacle(self) -> str:
        """Return what can be in the way besides other holders, for the text of a time-out."""
        return ""
