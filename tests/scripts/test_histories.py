"""Whatever sessions ask for, in whatever order, twice or late, the scripts do what the model in plain Python does.

Each run draws others, by `AIOLOCKS_SEED`: a hundred of a mutex and of a semaphore in the quick part, and more, of all
kinds, in the rest. `AIOLOCKS_EXAMPLES=5000 pytest tests/scripts/test_histories.py` tries that many of each, and longer
ones.
"""

import faulthandler
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, TypeVar, cast

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from redis import Redis

from tests.scripts.calls import Kind, token, upgrade_of
from tests.scripts.histories import LACKS, LIVES, LONG, SETTINGS, History, limited
from tests.scripts.model import Asker, Model
from tests.scripts.shapes import ASKERS, LIFE
from tests.scripts.shared_model import FRONT, IS, IX, SIX, UPGRADE, S, SharedModel, U, X
from tests.scripts.states import lapse
from tests.support.seeds import seed_of_run
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(0 if LONG else 300)]

H = TypeVar("H", bound=History)

_ASKER = st.integers(0, ASKERS - 1)
_TICKET = st.none() | st.sampled_from([1, 2**52]) | _ASKER
"""No old ticket; one from long ago or from before the clock stepped back; or the one that an asker had last."""
_CROWD = st.lists(_ASKER, min_size=3, max_size=8, unique=True)
_MOST = st.integers(0, 4)
_LIMIT = st.sampled_from([2, 1, 3, 2, 3, 4, 10**9])
_PAUSE = st.sampled_from([60_000, 3_600_000, 86_400_000])


class MutexHistory(History):
    """A mutex."""

    kind: ClassVar[Kind] = "lock"

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.set_up(Model(1, exclusive=True), data)

    @rule(number=_ASKER, old=_TICKET, again=st.booleans(), life_ms=LIVES)
    def acquire(self, number: int, old: int | None, again: bool, life_ms: int = LIFE) -> None:
        self.life = life_ms
        self.twice(again, lambda: self.ask(self.askers[number], wait=True, ticket=self.ticket(old)))

    @rule(numbers=_CROWD, brief=st.booleans())
    def crowd(self, numbers: list[int], brief: bool) -> None:
        for number in numbers:
            self.ask(self.askers[number], wait=True, brief=brief)

    @rule(number=_ASKER, again=st.booleans())
    def acquire_briefly(self, number: int, again: bool) -> None:
        self.twice(again, lambda: self.ask(self.askers[number], wait=True, brief=True))

    @rule(number=_ASKER, most=_MOST, again=st.booleans())
    def acquire_if_few_wait(self, number: int, most: int, again: bool) -> None:
        self.twice(again, lambda: self.ask(self.askers[number], wait=True, most=most))

    @rule(number=_ASKER, again=st.booleans())
    def try_acquire(self, number: int, again: bool) -> None:
        self.twice(again, lambda: self.ask(self.askers[number], wait=False))


class SemaphoreHistory(History):
    """A semaphore, whose limit is declared, resized and forgotten meanwhile."""

    kind: ClassVar[Kind] = "semaphore"

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.set_up(Model(0, exclusive=False), data)

    def permits(self) -> st.SearchStrategy[int]:
        return st.sampled_from([1, 1, 2, 1, 2, 3, 10**9])

    @rule(number=_ASKER, old=_TICKET, limit=_LIMIT, declare=st.booleans(), again=st.booleans(), life_ms=LIVES)
    def acquire(
        self, number: int, old: int | None, limit: int, declare: bool, again: bool, life_ms: int = LIFE
    ) -> None:
        self.life, ticket = life_ms, self.ticket(old)
        self.twice(again, lambda: self.ask(self.askers[number], wait=True, ticket=ticket, limit=limit, declare=declare))

    @rule(numbers=_CROWD)
    def crowd(self, numbers: list[int]) -> None:
        for number in numbers:
            self.ask(self.askers[number], wait=True, limit=self.model.limit or 2, declare=False)

    @rule(number=_ASKER, most=_MOST, limit=_LIMIT, declare=st.booleans(), again=st.booleans())
    def acquire_if_few_wait(self, number: int, most: int, limit: int, declare: bool, again: bool) -> None:
        asker = self.askers[number]
        self.twice(again, lambda: self.ask(asker, wait=True, most=most, limit=limit, declare=declare))

    @rule(number=_ASKER, limit=_LIMIT, again=st.booleans())
    def try_acquire(self, number: int, limit: int, again: bool) -> None:
        self.twice(again, lambda: self.ask(self.askers[number], wait=False, limit=limit, declare=False))

    @rule(number=_ASKER, wait=st.booleans(), again=st.booleans())
    def acquire_without_a_limit(self, number: int, wait: bool, again: bool) -> None:
        self.twice(again, lambda: self.ask(self.askers[number], wait=wait, limit=0, declare=False))

    @rule(number=st.integers(0, 3), limit=_LIMIT, pin=st.sampled_from([-1, 1, 0]), again=st.booleans())
    def resize(self, number: int, limit: int, pin: int, again: bool) -> None:
        session = self.sessions[number]

        def once() -> None:
            limit_before, pinned = self.model.limit, self.model.pinned if pin < 0 else pin == 1
            before, mine = self.scripts.resize(limit, pin=pin, session=session.name, life_ms=self.life)
            self.look()
            assert before == limit_before
            self.compare(session, self.model.resize(limit, self.seen, by=session, pin=pinned), mine)

        self.twice(again, once)

    @rule(number=st.integers(0, 3), pause_ms=_PAUSE, again=st.booleans(), full=st.booleans())
    def pause(self, number: int, pause_ms: int, again: bool, full: bool = False) -> None:
        session = self.sessions[number]

        def once() -> None:
            left_ms, mine = self.scripts.pause(pause_ms, session=session.name, life_ms=self.life)
            self.look()
            handed = self.model.pause(pause_ms, self.seen, by=session, left_ms=left_ms)
            assert self.model.paused is not None
            assert left_ms >= pause_ms
            assert 1_000 * left_ms <= self.model.paused.most - self.seen.before + self.seen.slack
            self.compare(session, handed, mine)

        with self.lacking("memory" if full else ""):
            self.twice(again, once)

    @rule(number=st.integers(0, 3), again=st.booleans(), lack=LACKS)
    def resume(self, number: int, again: bool, lack: str = "") -> None:
        session = self.sessions[number]

        def once() -> None:
            ended, mine = self.scripts.pause(0, session=session.name, life_ms=self.life)
            self.look()
            expected, handed = self.model.resume(self.seen, by=session)
            assert ended == expected
            self.compare(session, handed, mine)

        with self.lacking(lack):
            self.twice(again, once)

    @precondition(lambda self: self.model.paused)
    @rule()
    def a_pause_ends(self) -> None:
        lapse(self.scripts, b"pause")
        self.model.paused = None
        self.statistics()  # the first that looks
        least, most = self.model.longest_left(self.seen)
        assert max(least, 0) <= self.seen.longest <= max(most, 0), "W25: as before the pause"
        self.model.longest = self.seen.longest

    def everybody_leaves(self, number: int) -> None:
        self.resume(number=0, again=False)
        super().everybody_leaves(number)


class SharedHistory(History):
    """A name held in modes: two of the askers would upgrade what another holds."""

    kind: ClassVar[Kind] = "rwlock"

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.set_up(SharedModel(), data)

    def set_up(self, model: Model, data: st.DataObject) -> None:
        super().set_up(model, data)
        for number in range(1, ASKERS, 6):
            grown_from = self.askers[number - 1]
            self.askers[number - 1] = replace(grown_from, permits=U)
            name = f"{token(grown_from.who).decode()}+up"
            self.askers[number] = replace(self.askers[number], who=name, permits=UPGRADE)

    def permits(self) -> st.SearchStrategy[int]:
        return st.sampled_from([S, X, S, U, S, IS, X, IX, SIX])

    def may_hand_off(self, asker: Asker) -> bool:
        """No upgrade is handed off, and no lease from which one grows or would grow."""
        grown = [each for each in self.askers if each.permits == UPGRADE and each.who.startswith(upgrade_of(asker.who))]
        known = {*self.model.holders, *(each.who for line in self.model.lines.values() for each in line)}
        return super().may_hand_off(asker) and asker.permits != UPGRADE and not known & {each.who for each in grown}

    @rule(number=_ASKER, old=_TICKET, again=st.booleans())
    def acquire(self, number: int, old: int | None, again: bool) -> None:
        asker, ticket = self.askers[number], self.ticket(old)
        self.twice(again, lambda: self.ask(asker, wait=True, ticket=ticket))

    @rule(number=st.sampled_from(range(1, ASKERS, 6)), again=st.booleans())
    def upgrade(self, number: int, again: bool) -> None:
        self.twice(again, lambda: self.ask(self.askers[number], wait=True, ticket=FRONT))

    @rule(numbers=_CROWD)
    def crowd(self, numbers: list[int]) -> None:
        for number in numbers:
            self.ask(self.askers[number], wait=True)

    @rule(number=_ASKER, most=_MOST, again=st.booleans())
    def acquire_if_few_wait(self, number: int, most: int, again: bool) -> None:
        self.twice(again, lambda: self.ask(self.askers[number], wait=True, most=most))

    @rule(number=_ASKER, ticket=st.sampled_from([0, FRONT]), again=st.booleans())
    def try_acquire(self, number: int, ticket: int, again: bool) -> None:
        self.twice(again, lambda: self.ask(self.askers[number], wait=False, ticket=ticket))

    @rule(number=_ASKER, session=st.integers(0, 3), again=st.booleans())
    def downgrade(self, number: int, session: int, again: bool) -> None:
        asker, by = self.askers[number], self.sessions[session]
        if asker.permits not in (U, X):
            return

        def once() -> None:
            held, mine = self.scripts.downgrade(asker.who, S, session=by.name, life_ms=self.life)
            self.look()
            assert isinstance(self.model, SharedModel)
            expected, handed = self.model.downgrade(asker, self.seen, by=by)
            assert held == expected
            self.compare(by, handed, mine)

        self.twice(again, once)


_PARTS = 4
"""Of one machine's histories, each a test of its own: all together take longer than one may have on a busy machine."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("machine", [MutexHistory, SemaphoreHistory, SharedHistory])
def test_a_history_of_the_scripts_is_that_of_the_model(machine: type[History], part: int, server: RedisServer) -> None:
    if LONG:
        faulthandler.cancel_dump_traceback_later()  # pytest's, which would end a run of over three minutes
    explore(machine, server, examples=-(-SETTINGS.max_examples // _PARTS), part=str(part))


@pytest.mark.parametrize("machine", [MutexHistory, SemaphoreHistory])
def test_some_histories_of_the_scripts_are_those_of_the_model(machine: type[History], server: RedisServer) -> None:
    """In the quick part: of each planted defect that any number of histories finds, these find nearly all."""
    explore(machine, server, examples=100, part="quick")


def explore(machine: type[History], server: RedisServer, *, examples: int, part: str) -> None:
    """Try so many histories, drawn from the seed of the run for this *part*."""
    # No timeout: a busy machine may stand still for longer, and a history is not what judges that.
    with Redis.from_url(server.url, socket_timeout=None) as redis, limited(redis) as clients:
        drawn = hypothesis.seed(f"{seed_of_run()} {machine.__name__} {part}")(_on(machine, server, redis, clients))
        run_state_machine_as_test(drawn, settings=settings(SETTINGS, max_examples=examples))


def _on(machine: type[H], server: RedisServer, redis: Redis, limited: Mapping[str, Redis]) -> type[H]:
    shared = {"redis": redis, "knows_shards": server.version >= (7,), "limited": limited}
    return type(machine.__name__, (machine,), shared)


class _Drawn:
    """What `set_up` would draw: simple names, and how many permits each asker wants."""

    def __init__(self, permits: Sequence[int]) -> None:
        self._values = iter(["aiolocks:", "orders:42", "", 20_000, [(30_000, number) for number in permits]])

    def draw(self, _: object) -> object:
        return next(self._values)


@contextmanager
def begun(
    machine: type[H], model: Model, server: RedisServer, permits: Sequence[int] = (1, 1, 1, 1, 1, 1, 2, 1)
) -> Iterator[H]:
    """Begin a history for a test to play by hand, with simple names."""
    with Redis.from_url(server.url) as redis, limited(redis) as clients:
        history = _on(machine, server, redis, clients)()
        history.set_up(model, cast("st.DataObject", _Drawn(permits)))
        yield history
        history.teardown()


@pytest.fixture
def history(server: RedisServer) -> Iterator[SemaphoreHistory]:
    """A semaphore's: what a script leaves undone, the next re-check has to do."""
    with begun(SemaphoreHistory, Model(0, exclusive=False), server) as history:
        yield history


def test_a_session_that_died_behind_many_others_is_looked_for_again(server: RedisServer) -> None:
    """W21: a script that had no time for all of the queue says so, even if only the dead are left."""
    with begun(MutexHistory, Model(1, exclusive=True), server) as history:
        history.acquire_briefly(number=0, again=False)
        history.acquire_briefly(number=3, again=False)
        history.a_lease_lapses(0)
        history.acquire_briefly(number=0, again=False)
        history.many_sessions_have_died(0)
        history.a_session_dies(0)
        history.everybody_leaves(0)


def test_an_upgrade_brings_down_the_lease_that_it_grew_from(server: RedisServer) -> None:
    """P9: a clock that stepped back had left that an hour ahead."""
    with begun(SharedHistory, SharedModel(), server, permits=[S] * ASKERS) as history:
        history.crowd([1, 0, 7])
        history.the_clock_steps_back(0)
        history.crowd([0, 1, 2])


def test_a_recheck_brings_leases_down_after_the_last_permit_was_given(history: SemaphoreHistory) -> None:
    """P9: who hands it over looks no further; the next re-check brings down what lasts too long."""
    history.crowd([0, 1, 2, 3, 4])
    history.the_clock_steps_back(0)
    history.a_holder_releases(number=0, other=None, again=False)
    history.time_passes([0, 1, 2, 3])


def test_a_recheck_brings_leases_down_after_a_newcomer_gave_the_last_permit(history: SemaphoreHistory) -> None:
    """P9: the same, where a newcomer hands it over."""
    history.crowd([0, 1, 3])
    history.a_lease_lapses(0)
    history.the_clock_steps_back(0)
    history.crowd([0, 1, 2])
    history.time_passes([0, 1, 2, 3])


def test_a_recheck_serves_a_session_that_released_after_it_was_passed_over(history: SemaphoreHistory) -> None:
    """P13: another release may have taken the queue for empty; the next re-check gets what is free."""
    history.crowd([0, 1, 5])
    history.acquire(number=0, old=None, limit=3, declare=True, again=False)
    history.a_holder_releases(number=0, other=None, again=False)
    history.a_holder_releases(number=0, other=None, again=False)
    history.time_passes([0, 1, 2, 3])
    assert list(history.model.holders) == [history.askers[5].who]


def test_a_recheck_refuses_a_waiter_that_wants_too_many_while_no_permit_is_free(history: SemaphoreHistory) -> None:
    """Nothing is free, so nobody looks at it: its own re-check refuses it."""
    history.crowd([0, 1, 6])
    history.resize(number=0, limit=1, pin=-1, again=False)
    history.acquire(number=5, old=None, limit=2, declare=False, again=False)
    history.recheck(number=2, chosen=set(), all_of_it=True, again=False)
    assert history.model.line(history.sessions[2]) == []


def test_a_pause_ends_no_sooner_and_no_later_after_the_clock_stepped_back(history: SemaphoreHistory) -> None:
    """P9, W25: what is ahead of all that was asked for is cut to that, and what is asked for again is the same."""
    history.crowd([0, 1, 2])
    history.pause(number=0, pause_ms=3_600_000, again=True)
    history.the_clock_steps_back(0)
    history.time_passes([0, 1, 2, 3])
    history.pause(number=0, pause_ms=60_000, again=False)
    history.a_pause_ends()
    history.time_passes([0, 1, 2, 3])
    history.everybody_leaves(0)
