"""What the scripts promise, in plain Python: who holds, who waits in which order, and who is served when.

A mutex is a semaphore of one permit here. Nothing in it knows keys or clocks: what the server draws (fencing tokens,
tickets, instants) comes in as `Seen`, and is checked against the rule that it must follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.scripts.calls import entry
from tests.scripts.seen import Seen

MOST_LOOKED_AT = 50
"""Entries, the dead among them, that one script looks at (W21)."""

LATER = -3
"""In place of the fencing token, for the session of the first waiter: when to look again."""

REFUSED = -1
"""In place of the fencing token, for who asks for more than the limit."""


@dataclass(frozen=True, slots=True)
class Session:
    """Whoever asks for its waiters; *polls_ms* when it cannot be told and looks every so often instead."""

    name: str
    polls_ms: int = 0


@dataclass(frozen=True, slots=True)
class Asker:
    """One token, with its terms."""

    who: str
    home: Session
    ttl_ms: int
    permits: int

    @property
    def entry(self) -> bytes:
        return entry(self.who, ttl_ms=self.ttl_ms, permits=self.permits)


@dataclass(slots=True)
class Lease:
    """A lease that ends between *least* and *most*, in microseconds of the server's clock."""

    fence: int
    permits: int
    least: int
    most: int
    offered: bool = False
    """Its holder has handed it off, and its holder's name is a secret now."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A lease for somebody in line, or a refusal."""

    asker: Asker
    fence: int
    amount: int


class Model:
    """One name: its holders, its lines, and the sessions whose first waiter stands in the queue."""

    def __init__(self, limit: int, *, exclusive: bool) -> None:
        self.limit = limit
        """0: nobody has declared one."""
        self.pinned = False
        """No declaration changes the limit."""
        self.exclusive = exclusive
        self.holders: dict[str, Lease] = {}
        self.lines: dict[Session, dict[Asker, int]] = {}
        self.standing: set[Session] = set()
        """Who was not passed over since it last gave a sign of life."""
        self.heard: set[Session] = set()
        """Who listens on its channel."""
        self.buried: set[str] = set()
        self.adopted: set[str] = set()
        """Secrets of what was adopted, for as long as they are buried."""
        self.fence = 0
        """The last fencing token ever."""
        self.remembered = 0
        """The same as far as the server knows, which may have forgotten everything."""
        self.taken_back = 0
        """How many leases the script that ran last has taken back, as it could not tell who had them."""
        self.lacking = ""
        """What the scripts may not do: "publish" or "set", or have no "memory" for."""
        self.dead = 0
        """Sessions that have died and stand in the queue before all others."""
        self.looked_at = 0
        """Entries that the script that ran last has looked at (W21)."""
        self.longest = 0
        """ms: the largest TTL, which bounds what a clock that stepped back can leave."""
        self.paused: Lease | None = None
        """W25: nothing is granted until this ends."""

    @property
    def in_use(self) -> int:
        return sum(lease.permits for lease in self.holders.values())

    @property
    def offered(self) -> set[str]:
        return {who for who, lease in self.holders.items() if lease.offered}

    @property
    def waiting(self) -> int:
        """How many wait in sessions that were not passed over."""
        return sum(len(self.lines[session]) for session in self.standing)

    @property
    def free(self) -> int:
        return 0 if self.paused else max(self.limit - self.in_use, 0)

    def fresh(self) -> "Model":
        """Return what is left of it when the server has forgotten everything: a mutex is one of itself."""
        return Model(self.limit if self.exclusive else 0, exclusive=self.exclusive)

    def line(self, session: Session) -> list[Asker]:
        """Return who waits in one session, first in line first."""
        line = self.lines.get(session, {})
        return sorted(line, key=lambda asker: (line[asker], asker.entry))

    def queue(self) -> list[Session]:
        """Return the sessions by the tickets of their first waiters."""
        firsts = {session: self.lines[session][self.line(session)[0]] for session in self.standing}
        return sorted(firsts, key=lambda session: (firsts[session], session.name.encode()))

    def grant(
        self, asker: Asker, seen: Seen, *, by: Session, wait: bool, ticket: int, declares: int = 0,
        most: int | None = None,
    ) -> tuple[str, list[Handed]]:  # fmt: skip
        """Return the verdict, and what was handed over on the way."""
        if asker.who in self.buried:
            return "withdrawn", []
        handed: list[Handed] = []
        declared = declares not in (0, self.limit) and not self.pinned
        if declared:
            self.limit = declares
            self._return_to_line(by)
            handed += self._hand_over(by, seen)
        if asker.who in self.holders:
            self._extend(asker.who, asker.ttl_ms, seen)
            self._leave(asker, by)
            return "granted", handed
        if asker.permits > self.limit:
            if not self.limit:
                self._clamp(seen, surely=True)  # a pause, as there are no holders
            self._leave(asker, by)
            return "refused", handed
        bounded = self._bounded(asker, by, most)
        if wait and not bounded:
            self._enqueue(asker, by, ticket, seen)
        elif not bounded:
            self._return_to_line(by)
        possible = asker.permits <= self.free
        if self.free or declared:  # else the line is all that changes, though its first may wait in vain
            handed += self._hand_over(by, seen)
        if asker.who not in self.holders and not self.standing and not self.dead and asker.permits <= self.free:
            self._hold(asker, asker.ttl_ms, seen)
        if asker.who in self.holders:
            return "granted", handed
        # Where it could be had and a waiter got it, the others in line are not looked at; their re-checks will be.
        self._clamp(seen, surely=asker.permits > self.free and not (possible and self.standing))
        return self._join(asker, by, most if bounded else None, seen) or ("queued" if wait else "busy"), handed

    def _bounded(self, asker: Asker, by: Session, most: int | None) -> bool:
        """Whether a request waits only if few do (W26); its session returns to the queue, and counts."""
        if most is None or asker in self.lines.get(by, {}):
            return False
        if self.lines.get(by):
            self.standing.add(by)
        return True

    def _join(self, asker: Asker, by: Session, most: int | None, seen: Seen) -> str:
        """Add an asker that is not granted, if fewer than *most* wait. Otherwise return "full"."""
        if most:
            self.dead = 0  # W2: who counts the waiters takes out the dead before them
        if most is not None and self.waiting >= most:
            return "full"
        if most is not None:
            self._enqueue(asker, by, 0, seen)
        return ""

    def may_be_brief(self, asker: Asker) -> bool:
        """Whether there is nothing to tell one that asks for the first time: others of its session are told it all."""
        known = asker.who in self.buried or asker.who in self.holders or asker in self.lines.get(asker.home, {})
        return bool(self.holders) and asker.home in self.standing and not known

    def release(self, asker: Asker, seen: Seen, *, by: Session, bury: bool) -> tuple[bool, list[Handed]]:
        """Return whether that ended a lease, and what was handed over."""
        ended = self.holders.pop(asker.who, None) is not None
        if not ended:
            self._leave(asker, by)
        if bury:
            self.buried.add(asker.who)
        if not (ended and self._looked_at_nobody(by, seen)):
            self._return_to_line(by)
        return ended, self._hand_over(by, seen)

    def recheck(
        self, session: Session, askers: Sequence[Asker], seen: Seen
    ) -> tuple[list[int], bool, int, list[Handed]]:
        """Return the answers, whether it had been passed over, the last fencing token, and what was handed over."""
        answers, known, stood = [], False, session in self.standing
        for asker in askers:
            ticket = self.lines.get(session, {}).get(asker, 0)
            if asker.who in self.holders:
                self._extend(asker.who, asker.ttl_ms, seen)
                self._leave(asker, session)
                answers.append(-self.holders[asker.who].fence)
            elif asker.permits > self.limit > 0:
                self._leave(asker, session)
                answers.append(0)
            else:
                known = known or ticket > 0
                answers.append(ticket)
        if known:
            self.standing.add(session)
        before = self.remembered
        self._return_to_line(session)  # even with waiters that it did not list: the reply can reach them
        return answers, known and not stood, before, self._hand_over(session, seen)

    def renew(self, who: str, ttl_ms: int, seen: Seen) -> bool:
        if who in self.holders:
            self._extend(who, ttl_ms, seen)
        return who in self.holders

    def renew_shortly(self, who: str, ttl_ms: int, seen: Seen) -> bool:
        """Renew one of many: of permits only if no lease was longer, else it must be renewed by itself."""
        return (self.exclusive or ttl_ms <= self.longest) and self.renew(who, ttl_ms, seen)

    def hand_off(self, who: str, secret: str, ttl_ms: int, seen: Seen, *, bury: bool) -> int:
        """Put a secret in the place of a holder (W17)."""
        if secret in self.holders:
            return 1
        if who not in self.holders:
            return 0
        self._extend(who, ttl_ms, seen)
        self.holders[secret] = replace(self.holders.pop(who), offered=True)
        if bury:
            self.buried.add(who)
        return 1

    def touch(self, secret: str, ttl_ms: int, seen: Seen) -> int:
        """Return the fencing token of what is offered, -1 if it was adopted, or 0 if there is nothing (W27)."""
        if secret not in self.offered:
            return -(secret in self.adopted & self.buried)
        self._extend(secret, ttl_ms, seen)
        return self.holders[secret].fence

    def adopt(self, asker: Asker, secret: str, seen: Seen) -> int:
        """Give what is offered to *asker*, with a fencing token of its own; return that, or 0 (W17)."""
        if asker.who in self.buried or not {asker.who, secret} & {*self.holders}:
            return 0
        if asker.who not in self.holders:
            fence = seen.fences[asker.who]
            self.drawn_fence(fence, seen)
            self.holders[asker.who] = replace(self.holders.pop(secret), fence=fence, offered=False)
            self.adopted.add(secret)
            self.buried.add(secret)
        self._extend(asker.who, asker.ttl_ms, seen)
        return self.holders[asker.who].fence

    def revoke_offer(self, secret: str, seen: Seen, *, by: Session) -> list[Handed]:
        """End what is offered at once, as no body relies on it (W16)."""
        del self.holders[secret]
        self._return_to_line(by)
        return self._hand_over(by, seen)

    def resize(self, limit: int, seen: Seen, *, by: Session, pin: bool) -> list[Handed]:
        self.limit, self.pinned = limit, pin
        self._return_to_line(by)
        return self._hand_over(by, seen)

    def pause(self, pause_ms: int, seen: Seen, *, by: Session, left_ms: int) -> list[Handed]:
        """W25: return who is refused, and the notice for the first session that can be notified."""
        if not self.free:
            self._clamp(seen, surely=True)
        pause = Lease(0, 0, seen.before + 1_000 * pause_ms, seen.now + 1_000 * pause_ms)
        if self.paused is not None:
            pause.least, pause.most = max(pause.least, self.paused.least), max(pause.most, self.paused.most)
        self.paused = pause
        self.longest = max(self.longest, pause_ms)
        self._return_to_line(by)
        handed = self._hand_over(by, seen)
        told = [session for session in self.queue() if session == by or session in self.heard][:1]
        return handed + [Handed(Asker("later", session, 0, 0), LATER, left_ms) for session in told]

    def resume(self, seen: Seen, *, by: Session) -> tuple[bool, list[Handed]]:
        """Return whether that ended a pause, and what was handed over."""
        if self.paused is not None:
            self._clamp(seen, surely=True)
        paused, self.paused = self.paused is not None, None
        least, most = self.longest_left(seen)
        if paused:
            self.longest = seen.longest
        self._return_to_line(by)
        given = max((asker.ttl_ms for line in self.lines.values() for asker in line), default=0)  # or taken back (W9)
        handed = self._hand_over(by, seen)
        if paused:
            assert max(least, 0) <= seen.longest <= max(most, given), "W25: as before the pause"
        return paused, handed

    def longest_left(self, seen: Seen) -> tuple[int, int]:
        """Return how many ms the last lease lasts, at least and at most: what the largest TTL is after a pause."""
        least = max((lease.least for lease in self.holders.values()), default=seen.now)
        most = max((lease.most for lease in self.holders.values()), default=seen.before)
        return (least - seen.now - seen.slack) // 1_000, (most - seen.before + seen.slack) // 1_000

    def counted(self, seen: Seen) -> None:
        """Let somebody have asked for statistics."""

    def die(self, session: Session) -> None:
        """Let a session have been silent for longer than its line lives."""
        self.lines.pop(session, None)
        self.standing.discard(session)

    def step_back(self, micros: int) -> None:
        """Let the server's clock have gone back: whatever is written down lies that much further ahead."""
        if self.remembered:
            self.fence = self.remembered = self.remembered + micros
        for lease in [*self.holders.values(), *filter(None, [self.paused])]:
            lease.fence += micros
            lease.least += micros
            lease.most += micros + 1_000  # as whole milliseconds are all that can be asked for
        for line in self.lines.values():
            line.update({asker: ticket + micros for asker, ticket in line.items()})

    def drawn_fence(self, fence: int, seen: Seen) -> None:
        """Take note of a fencing token: the clock's, or one more than the last where the clock is not ahead of that."""
        assert fence > self.fence, "P8: fencing tokens must grow"
        assert fence <= self.fence + 1 + self.taken_back or seen.before <= fence <= seen.now
        self.fence = self.remembered = fence

    def _hold(self, asker: Asker, ttl_ms: int, seen: Seen) -> int:
        fence = seen.fences[asker.who]
        self.drawn_fence(fence, seen)
        self.holders[asker.who] = Lease(fence, asker.permits, seen.before + 1_000 * ttl_ms, seen.now + 1_000 * ttl_ms)
        self.longest = max(self.longest, ttl_ms)
        self._check_hold()
        return fence

    def _cannot_tell(self, first: Asker, head: Session, seen: Seen, *, by: Session) -> bool:
        """Whether a lease was taken back, as its notice could not be sent (W9). Its fencing token is not used again."""
        if self.lacking != "publish" or head == by or head.polls_ms:
            return False
        self.taken_back += 1
        self.longest = max(self.longest, first.ttl_ms)
        return True

    def account_for_taken_back(self, seen: Seen) -> None:
        """Take note of the fencing tokens of leases that were taken back."""
        if self.taken_back:
            assert seen.last_fence >= self.fence
            self.fence = self.remembered = seen.last_fence
        self.taken_back = 0

    def _check_hold(self) -> None:
        assert self.in_use <= self.limit, "P9: no more permits than the limit"
        assert self.paused is None, "W25: nothing is granted during a pause"

    def _extend(self, who: str, ttl_ms: int, seen: Seen) -> None:
        lease = self.holders[who]
        lease.least = max(lease.least, seen.before + 1_000 * ttl_ms)
        lease.most = max(lease.most, seen.now + 1_000 * ttl_ms)
        self.longest = max(self.longest, ttl_ms)

    def _clamp(self, seen: Seen, *, surely: bool) -> None:
        """Bring leases that a clock that stepped back left far ahead down to the longest there can be."""
        for lease in () if self.exclusive else [*self.holders.values(), *filter(None, [self.paused])]:
            lease.least = min(lease.least, seen.before + 1_000 * self.longest)
            if surely:
                lease.most = min(lease.most, seen.now + 1_000 * self.longest)

    def _enqueue(self, asker: Asker, by: Session, old: int, seen: Seen) -> None:
        line = self.lines.setdefault(by, {})
        if asker not in line:
            before = [ticket for other in self.lines.values() for ticket in other.values()]
            fresh = max([seen.before, *(ticket + 1 for ticket in before)])
            line[asker] = min(old, fresh) if old else fresh
        self.standing.add(by)

    def _leave(self, asker: Asker, session: Session) -> None:
        """Take a waiter out of its line; that its session spoke puts the others of it back in the queue."""
        if self.lines.get(session, {}).pop(asker, None) is not None:
            self._place(session)

    def _looked_at_nobody(self, by: Session, seen: Seen) -> bool:
        """Whether a release took the short way, though others of its session wait and were passed over.

        It may where nobody stands in the queue: to look for a line each time would cost all releases a command, and
        those who were passed over are served at their next re-check (W2).
        """
        unchanged = {asker.entry for asker in self.lines.get(by, {})} == set(seen.lines.get(by.name, {}))
        return not self.exclusive and not self.standing and by.name not in seen.queue and unchanged

    def _place(self, session: Session) -> None:
        if self.lines.get(session):
            self.standing.add(session)
        else:
            self.die(session)

    def _return_to_line(self, session: Session) -> None:
        if self.lines.get(session) and (self.free or not self.exclusive):
            self.standing.add(session)

    def _hand_over(self, by: Session, seen: Seen) -> list[Handed]:
        handed: list[Handed] = []
        if not self._looked_at_the_dead():
            return handed
        while queue := self.queue():
            head = queue[0]
            first = self.line(head)[0]
            reachable = head == by or head in self.heard or bool(head.polls_ms)
            given = bool(handed) and not self.free
            if given and not self.exclusive and first.entry in seen.lines.get(head.name, {}):
                # Who gave away the last permit need not look at the next in line. Its re-check will: it is refused then
                # if it has to be, and what a clock that stepped back left is cut.
                self._clamp(seen, surely=False)
                break
            if first.permits > self.limit:
                handed.append(Handed(first, REFUSED, self.limit))
            elif first.permits > self.free and (reachable or not self.free):
                self._clamp(seen, surely=True)
                break
            elif not reachable or self._cannot_tell(first, head, seen, by=by):
                self._clamp(seen, surely=first.permits > self.free)
                self.standing.remove(head)
                continue
            else:
                handed.append(self._hand_to(first, head, seen, by=by))
            self._leave(first, head)
        return handed

    def _looked_at_the_dead(self) -> bool:
        """Drop the dead sessions for which a script has time; return whether there is time left for the others."""
        if self.exclusive and not self.free:
            return True  # there is nothing to hand over
        dropped = min(self.dead, MOST_LOOKED_AT - self.looked_at)
        self.dead -= dropped
        self.looked_at += dropped
        return self.looked_at < MOST_LOOKED_AT

    def _hand_to(self, first: Asker, head: Session, seen: Seen, *, by: Session) -> Handed:
        """Give the first of *head*'s line what it waits for: to one that polls, for as long as it may not notice."""
        ttl_ms = min(2 * head.polls_ms, first.ttl_ms) if head.polls_ms and head != by else first.ttl_ms
        return Handed(first, self._hold(first, ttl_ms, seen), first.ttl_ms)
