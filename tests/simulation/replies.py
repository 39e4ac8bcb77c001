"""What the replies to scripts say: who waits, whose turn it is, what was undone."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from .history import History
from .names import Name, Waiter
from .requests import Asked, whole
from .world import World

if TYPE_CHECKING:
    from .observer import Seen

MORE = -2
"""In place of a fencing token: a script had no time for all that may be free."""


@final
class Replies:
    """Notes for each name what is said of it, and counts how often."""

    def __init__(self, world: World, server: "Seen", history: History) -> None:
        self._world = world
        self._server = server
        self._history = history
        self._of_ghost = False
        self._sane = True

    def note(self, name: Name, verb: str, asked: Asked, reply: Any, *, of_ghost: bool, sane: bool) -> None:
        """See what one script said; *of_ghost*: nobody hears it, as the network has repeated the request."""
        self._of_ghost, self._sane = of_ghost, sane
        look: Callable[..., None] | None = getattr(self, f"_{verb}", None)
        if verb in ("resize", "downgrade"):
            self._world.meet(f"{verb}s", "server")
        if look is not None:
            look(name, asked.args, asked.more, whole(verb, reply))

    def _grant(self, name: Name, args: dict[str, bytes], more: list[bytes], reply: Any) -> None:
        meet = self._world.meet
        token, verdict = args["token"], reply[0]
        if self._of_ghost:  # the library cannot know of it: whatever it brings about ends with its TTL
            name.repeated.add(token)
            name.withdrawn.discard(token)
        meet(f"verdict {verdict.decode()}", "server")
        if args["ticket"] == b"+":
            if verdict == b"queued" and reply[2] < 0:
                meet("newcomers answered shortly", "server")
        elif int(args["ticket"]) > 0 and verdict in (b"queued", b"granted"):
            meet("re-entries with an old ticket", "server")
        if verdict == b"withdrawn":
            meet("tombstones found", "server")
            return
        if self._sane and token in name.withdrawn and verdict in (b"queued", b"granted"):
            self._world.violate(f"P7: {name.base.decode()}: {token.decode()[:8]} was {verdict.decode()} after its undo")
        if verdict == b"queued":
            self._waits(name, token, int(reply[1]), args, briefly=args["ticket"] == b"+" and reply[2] < 0)
            grants = reply[5]
        else:
            name.waiting.pop(token, None)
            grants = reply[2]
        self._own(name, grants, token)
        if args["session"].startswith(b"poll"):
            meet("requests of polling sessions", "server")

    def _recheck(self, name: Name, args: dict[str, bytes], more: list[bytes], reply: Any) -> None:
        meet = self._world.meet
        passed_over, answers, grants = reply[3:6]
        meet("re-checks", "server")
        if passed_over:
            meet("sessions passed over", "server")
        for entry, answer in zip(more, answers, strict=False):
            token = entry.split(b" ")[0]
            if answer > 0:
                judged = self._sane and "address" in args  # the released version undoes by the line of an older attempt
                if judged and token in name.withdrawn and token not in name.waiting:
                    self._world.violate(
                        f"W8: {name.base.decode()}: a re-check queued {token.decode()[:8]} after its undo"
                    )
                self._waits(name, token, answer, args)
            else:
                name.waiting.pop(token, None)
                meet("grants found by a re-check" if answer < 0 else "waiters found forgotten", "server")
        self._own(name, grants, b"")

    def _release(self, name: Name, args: dict[str, bytes], more: list[bytes], reply: Any) -> None:
        token = args["token"]
        name.waiting.pop(token, None)
        if name.ends.get(token, 0.0) > self._server.clock():
            name.kept.add(name.fences.get(token, 0))
        # An attempt that is late can bring a lost lease once more, which is given back; this undoes no other attempt.
        stray = args["tombstone_ms"] == b"0" and token.decode() in self._history.lost
        if token not in name.repeated and not stray:
            name.withdrawn.add(token)
        if args["tombstone_ms"] != b"0":
            self._world.meet("tombstones written", "server")
        if token.decode() not in self._history.taken:
            self._world.meet("undos", "server")
            if reply[0] == 1:
                self._world.meet("undos of a grant", "server")
        self._own(name, reply[1], token)

    def _renew(self, name: Name, args: dict[str, bytes], more: list[bytes], reply: Any) -> None:
        self._world.meet("renewals" if reply == 1 else "renewals refused", "server")

    def _revoke(self, name: Name, args: dict[str, bytes], more: list[bytes], reply: Any) -> None:
        self._own(name, reply[1], b"")

    _resize = _downgrade = _pause = _revoke

    def _own(self, name: Name, grants: list[Any], asking: bytes) -> None:
        for token, fence, _ in grants:
            name.waiting.pop(token, None)
            if fence == MORE:
                self._world.meet("replies that there is more", "server")
            if token != asking and fence > 0:
                self._world.meet("hand-offs within a session", "server")

    def _waits(self, name: Name, token: bytes, ticket: int, args: dict[str, bytes], *, briefly: bool = False) -> None:
        """Note that it waits; one that was answered *briefly* gave no sign of life, and lives as those beside it do."""
        session, heard_at = args["session"], self._server.clock()
        if briefly:
            heard_at = max((one.heard_at for one in name.waiting.values() if one.session == session), default=heard_at)
        reachable = self._server.listeners(name.base, session) > 0
        life = int(args["life_ms"]) / 1000
        name.tickets.setdefault(token, {})[session] = ticket
        name.waiting[token] = Waiter(ticket, session, heard_at, life, reachable)
