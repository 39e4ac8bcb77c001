"""Runs a script and the model side by side and compares all that can be seen of them: the steps of any history."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from redis import Redis

from aiolocks._core.keys import Keys
from tests.scripts import calls
from tests.scripts.model import MOST_LOOKED_AT, Asker, Handed, Model, Session
from tests.scripts.seen import Seen
from tests.scripts.shapes import ASKERS, DEAD, LIFE, LONGEST_LIFE, NAMES, PREFIXES, TTLS, WORDS
from tests.scripts.states import Inbox, Message


class ScriptMachine(RuleBasedStateMachine):
    """What a mutex, a semaphore and a read-write lock have in common."""

    kind: ClassVar[calls.Kind]

    redis: ClassVar[Redis]

    knows_shards: ClassVar[bool]
    """Whether the server has the channels of a Cluster's shards."""

    limited: ClassVar[Mapping[str, Redis]]
    """Clients for whom the scripts lack a right, or memory: by what they lack."""

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.listening: dict[Session, tuple[Inbox, ExitStack]] = {}

    def set_up(self, model: Model, data: st.DataObject) -> None:
        """Draw how everything is called; simple names first, so that a failure is told with those."""
        self.model = model
        keys = Keys(data.draw(PREFIXES), self.kind, data.draw(NAMES))
        sharded = self.knows_shards and len(keys.base) % 2 == 0  # as good as drawn
        self.scripts = calls.Scripts(self.redis, self.kind, keys=keys, sharded=sharded)
        word, polls_ms = data.draw(WORDS), data.draw(st.sampled_from([20_000, 90_000]))
        self.sessions = [*(Session(f"{word}s{number}") for number in range(3)), Session(f"poll{polls_ms}-s", polls_ms)]
        terms = st.lists(st.tuples(TTLS, self.permits()), min_size=ASKERS, max_size=ASKERS)
        self.askers = [
            Asker(f"{word}w{number}w", self.sessions[number % 4], *pair) for number, pair in enumerate(data.draw(terms))
        ]
        self.offers: dict[str, Asker] = {}
        """By its secret each lease that was ever handed off, as the asker that a release of it is for."""
        self.tickets: dict[Asker, int] = {}
        """The last that each was told."""
        self.highest = 0
        """The newest ticket of all."""
        self.life = LIFE
        """ms: how long a session that speaks now is taken for alive."""
        self.seen = Seen.read(self.scripts, 0)

    def permits(self) -> st.SearchStrategy[int]:
        return st.just(1)

    def teardown(self) -> None:
        for _, stack in self.listening.values():
            stack.close()

    @contextmanager
    def lacking(self, what: str) -> Iterator[None]:
        """Have scripts run at the memory limit, or by a user without a right: they end what they began (W9)."""
        scripts, heard = self.scripts, self.model.heard
        if what:
            self.scripts = scripts.over(self.limited[what])
        if what == "numsub":
            self.model.heard = set()
        self.model.lacking = what
        try:
            yield
        finally:
            self.scripts, self.model.heard, self.model.lacking = scripts, heard, ""

    def look(self) -> None:
        """Read what is there after a script; what happened since the last look happened between the two."""
        self.seen = Seen.read(self.scripts, self.seen.now)

    def compare(self, by: Session | None, handed: Sequence[Handed], mine: Sequence[calls.Grant] = ()) -> None:
        """Compare the server with the model: who was told of what, and all that is written down."""
        self.model.account_for_taken_back(self.seen)
        self._compare_told(by, handed, mine)
        self._compare_queue(by)
        self._compare_holders()
        assert self.seen.buried == self.model.buried
        assert self.seen.strange == []
        assert [key for key, life in self.seen.lives.items() if life < 0] == [], "no key lives for ever"

    def _compare_told(self, by: Session | None, handed: Sequence[Handed], mine: Sequence[calls.Grant]) -> None:
        model = self.model
        turns = [(turn.asker.home, calls.Grant(turn.asker.who, turn.fence, turn.amount)) for turn in handed]
        if model.looked_at == MOST_LOOKED_AT and self.seen.queue:  # W21: there was no time for all, dead or alive
            head = self.seen.queue[0]
            asked = {by, *(session for session in self.sessions if session.name == head)}
            turns += [(session, calls.MORE) for session in asked if session]
        model.looked_at = 0
        assert list(mine) == [grant for home, grant in turns if home == by]
        for session, (inbox, _) in self.listening.items():
            assert inbox.messages() == [
                Message(grant.who, grant.fence, grant.amount, self.scripts.keys.base)
                for home, grant in turns
                if home == session != by and model.lacking != "publish"
            ]

    def _compare_queue(self, by: Session | None) -> None:
        model, seen = self.model, self.seen
        if by and by not in model.standing and model.lines.get(by) and by.name in seen.queue:
            model.standing.add(by)  # whoever speaks may stand in line again, even where it need not
        assert sum(name.startswith(DEAD) for name in seen.queue) == model.dead
        lines = {session.name: line for session, line in model.lines.items() if line}
        assert {name: set(line) for name, line in seen.lines.items()} == {
            name: {asker.entry for asker in line} for name, line in lines.items()
        }
        for name, line in lines.items():
            for asker, ticket in line.items():
                drawn = seen.lines[name][asker.entry]
                if self.tickets.get(asker) == ticket:
                    assert drawn == ticket
                else:
                    assert ticket <= drawn, "W8: never ahead of those who came before"
                    assert drawn <= max(seen.now, self.highest + 1), "W8: never behind those who come later"
                line[asker] = self.tickets[asker] = drawn
        assert [name for name in seen.queue if name in lines] == [session.name for session in model.queue()]
        self.highest = seen.newest
        assert all(ticket <= seen.newest for line in seen.lines.values() for ticket in line.values())
        for session in model.standing:
            assert seen.scores[session.name] == min(model.lines[session].values())
            line_life = seen.lives[self.scripts.key("waiters", session=session.name)]
            assert line_life <= LONGEST_LIFE

    def _compare_holders(self) -> None:
        model, seen = self.model, self.seen
        assert seen.fences == {who: lease.fence for who, lease in model.holders.items()}
        assert seen.permits == {who: lease.permits for who, lease in model.holders.items()}
        assert seen.offered == model.offered
        kept_in = [self.scripts.keys.base, *([self.scripts.key("meta")] if self.kind != "lock" else [])]
        for who, lease in model.holders.items():
            assert lease.least - self.seen.slack <= seen.ends[who] <= lease.most + self.seen.slack
            for key in kept_in:
                assert seen.now + 1_000 * seen.lives[key] >= lease.least - seen.slack, "nothing is forgotten too soon"
        assert seen.last_fence == model.remembered
        if self.kind == "semaphore":
            assert seen.heaviest >= max((lease.permits for lease in model.holders.values()), default=0)
        self._compare_pause(kept_in)

    def _compare_pause(self, kept_in: Sequence[bytes]) -> None:
        """W25: it lasts as long as was asked for, and no longer."""
        seen, pause = self.seen, self.model.paused
        if pause is None:
            assert not seen.pause
            return
        assert pause.least - seen.slack <= seen.pause <= pause.most + seen.slack
        assert seen.heaviest >= 10**9
        for key in kept_in:
            assert seen.now + 1_000 * seen.lives[key] >= pause.least - seen.slack, "nothing is forgotten too soon"

    def live(self, session: Session) -> None:
        """Check that a session that gave a sign of life has nearly its whole life left, and a queue to stand in."""
        life = self.seen.lives.get(self.scripts.key("waiters", session=session.name), self.life)
        elapsed = (self.seen.now - self.seen.before + self.seen.slack) // 1_000
        assert 0.9 * self.life - elapsed <= life <= self.life, "W3: the life of a line is set, never extended beyond"
        if session in self.model.standing:
            assert self.seen.lives[self.scripts.key("queue")] >= life - elapsed

    def twice(self, again: bool, once: Callable[[], object]) -> None:
        """Run a script, and once more as a client does whose reply was lost."""
        answer = once()
        if again:
            repeated = once()
            if isinstance(answer, calls.Granted):
                assert isinstance(repeated, calls.Granted), "P6: the same grant"
                assert repeated.fence == answer.fence, "P6: the same fencing token"

    def ask(self, asker: Asker, *, wait: bool, ticket: int = 0, most: int | None = None, **terms: Any) -> object:
        limit_before, waited = self.model.limit, asker in self.model.lines.get(asker.home, {})
        reply = self.scripts.grant(
            asker.who, session=asker.home.name, ttl_ms=asker.ttl_ms, permits=asker.permits, wait=wait,
            ticket=ticket, life_ms=self.life, most=most, **terms,
        )  # fmt: skip
        self.look()
        declares = terms.get("limit", 0) if terms.get("declare") or not limit_before else 0
        declares = 0 if self.model.pinned else declares
        briefly = bool(terms.get("brief")) and self.model.may_be_brief(asker)
        verdict, handed = self.model.grant(
            asker, self.seen, by=asker.home, wait=wait, ticket=ticket, declares=declares, most=most
        )
        kinds = {
            "granted": calls.Granted, "queued": calls.QueuedBeside if briefly else calls.Queued, "busy": calls.Busy,
            "full": calls.Full, "refused": calls.Refused, "withdrawn": calls.Withdrawn,
        }  # fmt: skip
        assert isinstance(reply, kinds[verdict]), (verdict, reply)
        mine: list[calls.Grant] = getattr(reply, "mine", [])
        if isinstance(reply, calls.Granted):  # whether the asker's own grant is listed too is all the same
            mine = [grant for grant in mine if grant != calls.Grant(asker.who, reply.fence, asker.ttl_ms)]
            handed = [turn for turn in handed if turn.asker != asker]
        if not ticket and not waited:
            self.tickets.pop(asker, None)  # it comes anew: what it was told before says nothing of its place
        self.compare(asker.home, handed, mine)
        told = limit_before if declares not in (0, limit_before) else 0
        assert getattr(reply, "limit_before", told) == told
        match reply:
            case calls.Granted():
                assert reply.fence == self.model.holders[asker.who].fence
            case calls.QueuedBeside():
                assert reply.ticket == self.tickets[asker]
                assert not waited
            case calls.Queued():
                assert reply.ticket == self.tickets[asker]
                assert waited or not ticket or reply.ticket <= ticket
                assert reply.fence == self.model.remembered
                assert reply.subscribers == (asker.home in self.model.heard)
                self.busy_for(reply.busy_ms)
                self.live(asker.home)
            case calls.Busy():
                self.busy_for(reply.busy_ms)
            case calls.Full():
                assert most is not None
                assert most <= reply.waiting <= self.model.waiting, "W26: counted as far as is needed"
                self.busy_for(reply.busy_ms)
            case calls.Refused():
                assert reply.limit == self.model.limit
        return reply

    def asker_of(self, who: str) -> Asker:
        return self.offers.get(who) or next(asker for asker in self.askers if asker.who == who)

    def ticket(self, old: int | None) -> int:
        """Return the old ticket that a rule means: of the asker of that number, or a number as it is."""
        if old is None:
            return 0
        return self.tickets.get(self.askers[old], 0) if old < ASKERS and old != 1 else old

    def busy_for(self, busy_ms: int) -> None:
        """Check how long the reply says that the first lease lasts; W25: or a pause, or the later of both."""
        model = self.model
        leases = list(model.holders.values())
        least, most = (min((getattr(lease, end) for lease in leases), default=0) for end in ("least", "most"))
        if model.paused is not None:
            waits = model.in_use >= model.limit
            least = max(model.paused.least, least) if waits else model.paused.least
            most = max(model.paused.most, most) if waits else model.paused.most
        if not leases and model.paused is None:
            assert busy_ms == -2
        else:
            assert (
                least - self.seen.now - self.seen.slack <= 1_000 * busy_ms <= most - self.seen.before + self.seen.slack
            )

    def undo(self, asker: Asker, by: Session, *, bury: bool) -> calls.Released:
        reply = self.scripts.release(
            asker.who,
            session=by.name,
            ttl_ms=asker.ttl_ms,
            permits=asker.permits,
            tombstone_ms=60_000 * bury,
            life_ms=self.life,
            waits=by is asker.home,  # rightly or not
        )
        self.look()
        # W9: a tombstone that may not be written keeps no waiter from what is free.
        ended, handed = self.model.release(asker, self.seen, by=by, bury=bury and self.model.lacking != "set")
        assert reply.ended == ended
        self.compare(by, handed, reply.mine)
        return reply

    def check(self, session: Session, listed: Sequence[Asker]) -> calls.Rechecked:
        reply = self.scripts.recheck(*(asker.entry for asker in listed), session=session.name, life_ms=self.life)
        self.look()
        answers, passed_over, before, handed = self.model.recheck(session, listed, self.seen)
        assert (reply.answers, reply.passed_over, reply.fence) == (answers, passed_over, before)
        assert reply.subscribers == (session in self.model.heard)
        self.compare(session, handed, reply.mine)
        self.busy_for(reply.busy_ms)
        if any(answer > 0 for answer in answers):
            self.live(session)
        return reply
