"""What can happen to one name, in any order that Hypothesis thinks of: the rules that a mutex and a semaphore share.

Time is made by hand: leases lapse, sessions die and the clock steps back when a rule says so, never by waiting.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from redis import Redis

from tests.scripts.calls import token
from tests.scripts.machine import ScriptMachine
from tests.scripts.model import MOST_LOOKED_AT, Asker
from tests.scripts.shapes import ASKERS, DEAD, LIFE, LONGEST_LIFE, TTLS
from tests.scripts.states import lapse, limited_user, listening

EXAMPLES = int(os.environ.get("AIOLOCKS_EXAMPLES", "0"))
"""How many histories of each machine a long run tries; 0: a few hundred, and shorter ones."""

LONG = bool(EXAMPLES)
SETTINGS = settings(
    max_examples=EXAMPLES or 200, stateful_step_count=50 if LONG else 30, phases=[Phase.generate, Phase.shrink],
    deadline=None, database=None, report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
)  # fmt: skip

TROUBLES = [
    "a_lease_lapses", "a_lease_lapses", "a_holder_is_late", "a_session_dies", "a_tombstone_ends",
    "a_session_dies", "many_sessions_have_died", "the_clock_steps_back",
    "the_server_forgets_everything", "everybody_leaves",
]  # fmt: skip
LIVES = st.sampled_from([LIFE // 2, LIFE, LONGEST_LIFE])
LACKS = st.sampled_from(["", "", "memory", "numsub", "publish", "set"])
"""What the scripts lack while one is run: rights, or memory to write to."""

_RENEWED = TTLS | st.just(20_000)
_ASKER = st.integers(0, ASKERS - 1)
_OFFER = st.integers(0, 7)
_HOUR = 3_600_000_000
"""Microseconds."""
_LONGER = "return redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[1]) + ARGV[1])"


class _AtTheMemoryLimit(Redis):
    """Each command but those of a pipeline finds the server at its memory limit."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        run: Any = super().execute_command
        run("CONFIG", "SET", "maxmemory", 1)
        try:
            return run(*args, **options)
        finally:
            run("CONFIG", "SET", "maxmemory", 0)


@contextmanager
def limited(redis: Redis) -> Iterator[dict[str, Redis]]:
    """Make clients of users who have all rights but one, and one at the memory limit, by what they lack."""
    path = redis.connection_pool.connection_kwargs["path"]
    with ExitStack() as undo:
        clients = {"memory": undo.enter_context(_AtTheMemoryLimit(unix_socket_path=path, socket_timeout=None))}
        for lack, right in {"numsub": "-pubsub", "publish": "resetchannels", "set": "-set"}.items():
            clients[lack] = undo.enter_context(limited_user(redis, right))
        yield clients


class History(ScriptMachine):
    """A history, but for how to acquire."""

    @rule(number=st.integers(0, ASKERS - 1), bury=st.booleans(), again=st.booleans(), lack=LACKS)
    def release(self, number: int, bury: bool, again: bool, lack: str = "") -> None:
        asker = self.askers[number]
        with self.lacking(self.possible(lack)):
            self.twice(again, lambda: self.undo(asker, asker.home, bury=bury))

    def possible(self, lack: str) -> str:
        """Return what may be lacking: without SET, a mutex is never granted."""
        return lack if self.kind != "lock" or lack != "set" else ""

    @precondition(lambda self: self.model.holders)
    @rule(number=st.integers(0, ASKERS - 1), other=st.none() | st.integers(0, 3), again=st.booleans(), lack=LACKS)
    def a_holder_releases(self, number: int, other: int | None, again: bool, lack: str = "") -> None:
        """A lease may end in another session than it began in; a place in line may not."""
        asker = self.asker_of(self.one_of(self.model.holders, number))
        by = asker.home if other is None else self.sessions[other]
        with self.lacking(self.possible(lack)):
            self.undo(asker, by, bury=False)
            if again and not any(asker in line for line in self.model.lines.values()):
                self.undo(asker, by, bury=False)

    def one_of(self, names: Collection[str], number: int) -> str:
        return sorted(names)[number % len(names)]

    @rule(
        number=st.integers(0, 3),
        chosen=st.sets(st.integers(0, ASKERS - 1)),
        all_of_it=st.booleans(),
        again=st.booleans(),
        lack=LACKS,
    )
    def recheck(self, number: int, chosen: set[int], all_of_it: bool, again: bool, lack: str = "") -> None:
        session = self.sessions[number]
        listed = [self.askers[number] for number in sorted(chosen)]
        if all_of_it:
            listed = [asker for asker in self.askers if asker.home == session]
        with self.lacking(self.possible(lack)):
            self.twice(again, lambda: self.check(session, listed))

    @rule(order=st.permutations(range(4)))
    def time_passes(self, order: list[int]) -> None:
        """Every session re-checks all its waiters, as it does at least once a second."""
        for number in order:
            session = self.sessions[number]
            self.check(session, list(self.model.lines.get(session, {})))

    @rule(number=st.integers(0, ASKERS - 1), ttl_ms=_RENEWED, again=st.booleans(), full=st.booleans())
    def renew(self, number: int, ttl_ms: int, again: bool, full: bool = False) -> None:
        def once() -> None:
            renewed = self.scripts.renew(self.askers[number].who, ttl_ms)
            self.look()
            assert renewed == self.model.renew(self.askers[number].who, ttl_ms, self.seen)
            self.compare(None, [])

        with self.lacking("memory" if full else ""):
            self.twice(again, once)

    @rule(numbers=st.lists(st.integers(0, ASKERS - 1), min_size=1, max_size=4), ttl_ms=_RENEWED)
    def renew_many(self, numbers: list[int], ttl_ms: int) -> None:
        """W21: each by itself, although a key of another type is among them."""
        other = self.scripts.named("of another type")
        self.redis.rpush(other.keys.base, "another library's")
        askers = [self.askers[number] for number in numbers]
        renewed = self.scripts.renew_many((other, "w", ttl_ms), *((self.scripts, each.who, ttl_ms) for each in askers))
        self.redis.delete(other.keys.base)
        self.look()
        assert renewed == [False, *(self.model.renew_shortly(each.who, ttl_ms, self.seen) for each in askers)]
        self.compare(None, [])

    @precondition(lambda self: self.model.holders)
    @rule(number=_ASKER, ttl_ms=_RENEWED, bury=st.booleans(), again=st.booleans(), full=st.booleans())
    def a_holder_hands_off(self, number: int, ttl_ms: int, bury: bool, again: bool, full: bool = False) -> None:
        """W17: under a secret that is never used again."""
        asker = self.asker_of(self.one_of(self.model.holders, number))
        if not self.may_hand_off(asker):
            return
        secret = f"h{len(self.offers)}{asker.who}"  # no token begins another
        self.offers[secret] = replace(asker, who=secret, permits=self.model.holders[asker.who].permits)

        def once() -> None:
            answer = self.scripts.hand_off(asker.who, secret, ttl_ms=ttl_ms, tombstone_ms=60_000 * bury)
            self.look()
            assert answer == self.model.hand_off(asker.who, secret, ttl_ms, self.seen, bury=bury)
            self.compare(None, [])

        with self.lacking("memory" if full else ""):
            self.twice(again, once)

    def may_hand_off(self, asker: Asker) -> bool:
        return asker.who not in self.offers

    @precondition(lambda self: self.offers)
    @rule(number=_OFFER, ttl_ms=_RENEWED | st.just(0), again=st.booleans(), full=st.booleans(), wrong=st.booleans())
    def touch(self, number: int, ttl_ms: int, again: bool, full: bool = False, wrong: bool = False) -> None:
        """W27: early or late, of a lease that is offered, was adopted, dropped or revoked, or has ended, or of none."""
        secret = self.one_of(self.model.holders if wrong and self.model.holders else self.offers, number)

        def once() -> None:
            answer = self.scripts.touch(secret, ttl_ms=ttl_ms)
            self.look()
            assert answer == self.model.touch(secret, ttl_ms, self.seen)
            self.compare(None, [])

        with self.lacking("memory" if full else ""):
            self.twice(again, once)

    @precondition(lambda self: self.offers)
    @rule(number=_OFFER, session=st.integers(0, 3), again=st.booleans(), lack=LACKS)
    def drop(self, number: int, session: int, again: bool, lack: str = "") -> None:
        """W27: a release of the secret, by any session."""
        asker = self.offers[self.one_of(self.offers, number)]
        with self.lacking(self.possible(lack)):
            self.twice(again, lambda: self.undo(asker, self.sessions[session], bury=False))

    @precondition(lambda self: self.model.offered)
    @rule(number=_OFFER, adopter=_ASKER, again=st.booleans(), full=st.booleans())
    def adopt(self, number: int, adopter: int, again: bool, full: bool = False) -> None:
        """By a request that has never waited, as its token is fresh."""
        secret, model = self.one_of(self.offers, number), self.model
        known = {*model.holders, *(each.who for line in model.lines.values() for each in line)}
        adopters = [
            each for each in self.askers if each.who not in known and each.permits == self.offers[secret].permits
        ]
        # After the clock stepped back, an adopter keeps all of a lease that lasts longer than any should.
        far = secret in model.holders and model.holders[secret].most > self.seen.now + 1_000 * model.longest
        if not adopters or (far and not model.exclusive):
            return
        asker = adopters[adopter % len(adopters)]

        def once() -> None:
            fence = self.scripts.adopt(asker.who, secret, ttl_ms=asker.ttl_ms)
            self.look()
            assert fence == self.model.adopt(asker, secret, self.seen)
            self.compare(None, [])

        with self.lacking("memory" if full else ""):
            self.twice(again, once)

    @precondition(lambda self: self.model.offered)
    @rule(number=_OFFER, session=st.integers(0, 3))
    def revoke_an_offer(self, number: int, session: int) -> None:
        secret, by = self.one_of(self.model.offered, number), self.sessions[session]
        reply = self.scripts.revoke(self.model.holders[secret].fence, session=by.name, life_ms=self.life)
        assert reply.left_ms == 0
        self.look()
        self.compare(by, self.model.revoke_offer(secret, self.seen, by=by), reply.mine)

    @rule(life_ms=LIVES)
    def waiters_become_more_or_less_patient(self, life_ms: int) -> None:
        """W3: what a session says of its life when it next speaks is what counts."""
        self.life = life_ms

    @rule()
    def statistics(self) -> None:
        told, model = self.scripts.statistics(), self.model
        waiting = sum(len(model.lines[session]) for session in model.standing)
        assert (told.permits, told.holders, told.waiting) == (model.in_use, len(model.holders), waiting)
        assert (told.fence, told.limit, told.kept) == (model.remembered, model.limit, 0)
        self.look()
        if model.paused is None:
            assert told.paused_ms == 0
        else:
            least, most = model.paused.least - self.seen.now, model.paused.most - self.seen.before
            assert least - self.seen.slack <= 1_000 * told.paused_ms <= most + self.seen.slack
        model.counted(self.seen)
        self.compare(None, [])

    @rule(number=st.integers(0, 2))
    def subscribe_or_not(self, number: int) -> None:
        session = self.sessions[number]
        if session in self.listening:
            self.listening.pop(session)[1].close()
            self.model.heard.remove(session)
        else:
            stack = ExitStack()
            self.listening[session] = stack.enter_context(listening(self.scripts, session.name)), stack
            self.model.heard.add(session)

    @rule(what=st.sampled_from(TROUBLES), number=st.integers(0, ASKERS - 1))
    def trouble(self, what: str, number: int) -> None:
        getattr(self, what)(number)

    def a_lease_lapses(self, number: int) -> None:
        """Its holder has died, or was cut off."""
        if self.model.holders:
            who = self.one_of(self.model.holders, number)
            lapse(self.scripts, who)
            del self.model.holders[who]

    def a_holder_is_late(self, number: int) -> None:
        """It was stopped until its lease had lapsed: neither its renewal nor its release may do anything."""
        if self.model.holders:
            who = self.one_of(self.model.holders, number)
            self.a_lease_lapses(number)
            if number % 2:
                assert not self.scripts.renew(who, 30_000)
            else:
                asker = self.asker_of(who)
                self.undo(asker, asker.home, bury=False)

    def a_session_dies(self, number: int) -> None:
        session = self.sessions[number % 4]
        self.redis.delete(self.scripts.key("waiters", session=session.name))
        self.model.die(session)

    def many_sessions_have_died(self, number: int) -> None:
        """More than one script looks at, and they came before all others (W21)."""
        queue = self.scripts.key("queue")
        if self.kind == "rwlock" or self.model.dead or not self.model.holders:
            return
        self.model.dead = MOST_LOOKED_AT + 1 + number
        self.redis.zadd(queue, {f"{DEAD}{each}": each - 10**15 for each in range(self.model.dead)})
        if self.redis.pttl(queue) < 0:
            self.redis.pexpire(queue, LIFE)
        if self.kind == "semaphore":
            self.redis.hset(self.scripts.key("meta"), "line", "1")

    def a_tombstone_ends(self, number: int) -> None:
        if self.model.buried:
            who = self.one_of(self.model.buried, number)
            self.redis.delete(self.scripts.key("tombstone", who=who))
            self.model.buried.remove(who)

    def the_clock_steps_back(self, _: int) -> None:
        """By an hour: whatever is written down lies that much further ahead."""
        self.statistics()  # drops what has lapsed: it would be back
        self.look()
        pipeline = self.redis.pipeline()
        for key in self.seen.lives:
            if not key.startswith(self.scripts.keys.part(b"q")):
                pipeline.eval(_LONGER, 1, key.decode(), _HOUR // 1_000)
        for name, line in self.seen.lines.items():
            for entry in line:
                pipeline.zincrby(self.scripts.key("waiters", session=name), _HOUR, entry)
        for name in self.seen.queue:
            pipeline.zincrby(self.scripts.key("queue"), _HOUR, name)
        if self.seen.newest:
            pipeline.incrby(self.scripts.key("highest"), _HOUR)
        for who, fence in self.seen.fences.items():
            later = b"%d%b" % (fence + _HOUR, b" O" if who in self.seen.offered else b"")
            if self.kind == "lock":
                pipeline.set(self.scripts.keys.base, token(who) + b" " + later, keepttl=True)
            else:
                pipeline.zincrby(self.scripts.keys.base, _HOUR // 1_000, token(who).decode())
                pipeline.hset(self.scripts.key("meta"), token(who), b"%d %b" % (self.seen.permits[who], later))
        if self.seen.pause:
            pipeline.zincrby(self.scripts.keys.base, _HOUR // 1_000, "pause")
        if self.model.remembered and self.kind == "lock":
            pipeline.incrby(self.scripts.key("fence"), _HOUR)
        elif self.model.remembered:
            pipeline.hincrby(self.scripts.key("meta"), "fence", _HOUR)
            # A semaphore counts permits and holders before the last fencing token and two instants, the others behind.
            field, before = ("used", 2) if self.kind == "semaphore" else ("held", 0)
            noted: Any = (self.redis.hget(self.scripts.key("meta"), field) or b"").split()
            if noted:
                for at, step in enumerate((_HOUR, _HOUR // 1_000, _HOUR // 1_000), before):
                    noted[at] = b"%d" % (int(noted[at]) + step)
                pipeline.hset(self.scripts.key("meta"), field, b" ".join(noted))
        pipeline.execute()
        self.model.step_back(_HOUR)
        self.tickets = {asker: ticket + _HOUR for asker, ticket in self.tickets.items()}
        self.highest += _HOUR
        self.look()
        self.compare(None, [])

    def the_server_forgets_everything(self, _: int) -> None:
        """P8: fencing tokens grow on, by the clock."""
        self.redis.flushall()
        fresh = self.model.fresh()
        fresh.heard, fresh.fence = self.model.heard, min(self.model.fence, self.seen.now)
        self.model = fresh

    def everybody_leaves(self, _: int) -> None:
        """After the last lease and waiter nothing is left but residue."""
        # Twice, as hand-overs make holders of those who had nothing to release.
        for asker in [*self.offers.values(), *self.askers, *self.askers]:
            self.undo(asker, asker.home, bury=False)
        residue = {self.scripts.key(field) for field in ("fence", "meta", "highest")}
        residue |= {self.scripts.key("tombstone", who=who) for who in self.model.buried}
        assert set(self.seen.lives) <= residue
