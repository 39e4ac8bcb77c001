"""The way back from polling: a session that could not be told of its turns tries again, ever less often.

What it lacks may be a right, which can be given any day, or a subscription where its keys are, which a new connection
mends. It polls on until the server that has the keys says that it finds the subscription.
"""

from typing import TYPE_CHECKING, Any, final

from redis.exceptions import NoPermissionError

from ._bound import Arguments, pack
from ._commands import Call

if TYPE_CHECKING:
    from ._session import Session

_FIRST_PAUSE = 1.0
"""Seconds from when a session begins to poll to its first try to be told again."""

_LONGEST_PAUSE = 4.0
"""Seconds between tries at most, where the subscription was lost or is elsewhere: that may end at any moment."""

_LONGEST_WITHOUT_RIGHTS = 60.0
"""The same where a right is missing."""


@final
class _Count:
    name = "PUBSUB NUMSUB"

    def whole(self, args: Arguments) -> bytes:
        return pack(("PUBSUB", "NUMSUB", *args))

    by_digest = whole


_COUNT = _Count()


@final
class Healing:
    """When a session that polls tries to be told again. No timer: it looks when a re-check was answered."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._pause = _FIRST_PAUSE
        self._longest = _LONGEST_PAUSE
        self._due = 0.0
        self._healed_at = 0.0
        self._channel = b""

    def begin(self, *, rights: bool) -> float:
        """Note that the session polls from now on, for want of *rights* or not; return when it tries again."""
        now = self._session.clock()
        self._longest = _LONGEST_WITHOUT_RIGHTS if rights else _LONGEST_PAUSE
        if now - self._healed_at > self._longest:  # what is soon broken again after each try is tried less often
            self._pause = _FIRST_PAUSE
        return self._put_off(now)

    def _put_off(self, now: float) -> float:
        pause = min(self._pause, self._longest)
        self._due = now + pause
        self._pause = 2 * pause
        return pause

    def look(self, channel: bytes) -> None:
        """Subscribe to *channel* if it is time to try."""
        now = self._session.clock()
        if now >= self._due:
            self._put_off(now)
            self._channel = channel
            self._session.wakeups.listen(channel)

    def subscribed(self) -> None:
        """Ask the server that has the keys whether it finds the subscription that some server has confirmed."""
        commands = self._session.commands
        commands.submit(_COUNT, (self._channel,), self._counted, commands.patience)

    def _counted(self, call: Call, reply: Any) -> None:
        session = self._session
        if not session.polling or session.closed:
            return
        if isinstance(reply, NoPermissionError):
            self.forbidden()
        elif isinstance(reply, Exception) or not reply[1]:
            session.wakeups.close()
        else:
            self._healed_at = session.clock()
            session.stop_polling()

    def forbidden(self) -> None:
        """Note that the try has failed for want of a right."""
        self._longest = _LONGEST_WITHOUT_RIGHTS
        self._session.wakeups.close()
