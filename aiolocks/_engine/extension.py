"""What a request carries beyond the usual: an option is one class here, or in the module of its primitive.

The engine and the grantors know this class, and none of the options. An extension adds arguments to the request's
script, and reads its part of the reply.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._core.errors import LockError

if TYPE_CHECKING:
    from .context import Grantor
    from .request import Granted, Request


class Extension:
    """Adds nothing. Subclasses override what they need."""

    note = ""
    """What the lease is for, as other processes see it."""
    verb = ""
    """The script that is run in place of `grant`, if any: on the token, the arguments and the TTL. It returns a fencing
    token, or a number below 1 for a refusal."""
    confirms = False
    """Whether a grant counts only once `confirm` has returned."""
    for_parts = False
    """Whether each part of a lease on several names or servers carries it too."""
    answered_briefly = True
    """Whether a short reply says enough to a request that joins other waiters."""
    newcomer = b""
    """What a waiting request sends in place of a ticket until it has been granted or queued; if empty, 0. A short reply
    does not say enough then."""

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
        """Return why waiting would never end under that limit, or None."""
        return None

    def refusal(self, amount: int) -> LockError | None:
        """Return the error for a request that can never be granted. None: it asks for more than *amount* permits."""
        return None

    def unconfirmed(self) -> str:
        """Return the end of the error text for a caller whose time was over before `confirm` returned."""
        return ""

    async def confirm(self, grantor: "Grantor", request: "Request") -> "Granted":
        """Do what must be done before the caller acts on a grant. Called only if `confirms` is true.

        Raises:
            RedisError: It was not done in time, or the lease ran out meanwhile.
        """
        raise NotImplementedError

    def on_regrant(self) -> None:
        """Note that the lease ran out before its holder could begin, and was granted again, with a new fencing token.

        Raises:
            LockError: It must not be granted again.
        """

    def held(self) -> "Extension | None":
        """Return what the lease carries in its place from when the caller has it; None for nothing."""
        return self

    def release_arguments(self) -> tuple[bytes | int, ...]:
        """Return the arguments that the release of a lease takes beyond the usual ones."""
        return ()

    def on_busy(self, request: "Request") -> None:
        """Note that another lease is in the way."""

    def on_undone(self, request: "Request", *, ended: bool) -> None:
        """Note the reply to an undo of *request*: whether it ended a live lease."""

    def other_obstacle(self) -> str:
        """Return what can be in the way besides other holders, for the text of a time-out."""
        return ""
