"""What the scripts of names that are held in modes promise, in plain Python: a model beside that of permits."""

from typing import final

from tests.scripts.calls import token, who
from tests.scripts.model import REFUSED, Asker, Handed, Model, Session
from tests.scripts.seen import Seen

IS, IX, S, SIX, U, X, UPGRADE = range(1, 8)

GO_WITH = {IS: {IS, IX, S, SIX, U}, IX: {IS, IX}, S: {IS, S, U}, SIX: {IS}, U: {IS, S}, X: set[int](), UPGRADE: {U}}
"""What each mode may be granted beside."""

FRONT = 1


@final
class SharedModel(Model):
    """One name, held in modes; the permits of an asker are its mode."""

    def __init__(self) -> None:
        super().__init__(0, exclusive=False)

    @property
    def in_use(self) -> int:
        return len(self.holders)

    def fresh(self) -> "SharedModel":
        return SharedModel()

    def admits(self, asker: Asker) -> str:
        """Return "yes", "later", or "never": there is nothing to upgrade."""
        if asker.permits == UPGRADE:
            grown_from = self.holders.get(who(token(asker.who).partition(b"+")[0]))
            if b"+" not in token(asker.who) or grown_from is None or grown_from.permits != U:
                return "never"
        held = {lease.permits for lease in self.holders.values()}
        return "yes" if held <= GO_WITH[asker.permits] else "later"

    @property
    def alone(self) -> bool:
        """Nothing can be had beside what is held."""
        return any(lease.permits in (X, UPGRADE) for lease in self.holders.values())

    def grant(
        self, asker: Asker, seen: Seen, *, by: Session, wait: bool, ticket: int, declares: int = 0,
        most: int | None = None,
    ) -> tuple[str, list[Handed]]:  # fmt: skip
        if asker.who in self.buried:
            return "withdrawn", []
        if asker.who in self.holders:
            self._extend(asker.who, asker.ttl_ms, seen)
            self._leave(asker, by)
            return "granted", []
        verdict = self.admits(asker)
        if verdict == "never":
            self._leave(asker, by)
            return "refused", []
        self._clamp(seen, surely=False)  # an upgrade that is granted is judged by the leases beside it
        bounded = self._bounded(asker, by, most)
        if wait and not bounded:
            self._enqueue(asker, by, ticket, seen)
        handed: list[Handed] = []
        # Otherwise it goes beside what its task holds, and nothing is handed over.
        if verdict == "later" or ticket != FRONT:
            if not wait or bounded:
                self._return_to_line(by)
            handed = self._hand_over(by, seen)
            verdict = "later" if self.standing else self.admits(asker)
        if asker.who not in self.holders and verdict == "yes":
            self._hold(asker, asker.ttl_ms, seen)
            self._leave(asker, by)
        if asker.who in self.holders:
            return "granted", handed
        self._clamp(seen, surely=self.admits(asker) == "later")
        return self._join(asker, by, most if bounded else None, seen) or ("queued" if wait else "busy"), handed

    def downgrade(self, asker: Asker, seen: Seen, *, by: Session) -> tuple[bool, list[Handed]]:
        """Return whether it holds anything, and what was handed over."""
        if asker.who not in self.holders:
            return False, []
        self.holders[asker.who].permits = S
        self._return_to_line(by)
        return True, self._hand_over(by, seen)

    def counted(self, seen: Seen) -> None:
        """Saying what could be had looks at how far ahead the leases that are in the way end."""
        self._clamp(seen, surely=True)

    def _check_hold(self) -> None:
        pass  # `admits` has said so

    def _hand_over(self, by: Session, seen: Seen) -> list[Handed]:
        handed: list[Handed] = []
        while queue := self.queue():
            head = queue[0]
            first = self.line(head)[0]
            reachable = head == by or head in self.heard or bool(head.polls_ms)
            verdict = self.admits(first)
            if verdict == "later":
                self._clamp(seen, surely=True)
                if reachable or self.alone:
                    break
                self.standing.remove(head)
                continue
            if verdict == "never":
                handed.append(Handed(first, REFUSED, 0))
            elif not reachable or self._cannot_tell(first, head, seen, by=by):
                self.standing.remove(head)
                continue
            else:
                handed.append(self._hand_to(first, head, seen, by=by))
            self._leave(first, head)
        return handed
