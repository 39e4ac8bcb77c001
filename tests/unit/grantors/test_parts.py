"""Parts of one lease: how they are renewed and undone one by one, and the arithmetic of their answers."""

import asyncio
from collections.abc import Sequence
from itertools import product
from typing import Any, NoReturn

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError

from aiolocks._engine.request import Request, ResultCallback
from aiolocks._grantors.parts import Ballot, Composite, Part, counting, end, quorum_of
from aiolocks._redis.endpoints import Pipelines
from aiolocks.testing import After, ScriptedGrantor
from tests.support.cases import one_by_one
from tests.support.virtual import clock


async def test_what_is_undone_twice_is_undone_once_and_both_hear_of_it() -> None:
    stub = ScriptedGrantor(withdrawals=[After(0.2, True)])
    part, told = Part(stub, Request(1.0, 1, wait=False)), list[bool | Exception]()
    assert end(part, told.append) is end(part, told.append)
    await asyncio.sleep(0.3)
    assert (told, len(stub.times("withdraw"))) == ([True, True], 1)


async def test_an_undo_that_was_begun_twice_does_not_outlive_its_session() -> None:
    """The one of which the session did not know any more opened a new connection, which nobody closed."""
    stub = ScriptedGrantor(withdrawals=[RedisConnectionError()])
    part = Part(stub, Request(30.0, 1, wait=False))
    end(part)
    end(part)
    stub.context.schedule_idle_close()
    while not stub.context.closed:
        await asyncio.sleep(0.1)
    closed_at = clock()
    await asyncio.sleep(60)
    assert max(stub.times("withdraw")) <= closed_at


async def test_what_is_undone_after_its_session_has_ended_is_forgotten_by_the_sessions_of_its_parts() -> None:
    """Or these would never be idle, and would take a late grant of it for one that is wanted."""
    home, stubs = ScriptedGrantor(), [ScriptedGrantor() for _ in range(2)]
    request = Request(30.0, 1, wait=False)
    whole = Whole(home)
    request.parts = parts = [Part(stub, Request(30.0, 1, wait=False)) for stub in stubs]
    for part in parts:
        part.grantor.context.tokens[part.request.token] = part.request
    home.session.close()
    assert home.context.undos.begin(whole, request, 30).done
    assert [len(stub.context.tokens) for stub in stubs] == [0, 0]
    for stub in stubs:
        stub.session.close()


async def test_the_undo_of_a_quorum_waits_for_servers_that_granted_and_not_for_silent_servers() -> None:
    """Of five servers one does not answer, and one that has granted is slow to undo it."""
    parts = parts_of(*(After(delay, True) for delay in (0.1, 0.2, 0.3, 0.5, 5.0)))
    told: list[float] = []
    parts[3].request.valid_from = clock()
    Whole(needed=3).undo(made_of(parts), lambda _: told.append(clock()))
    await asyncio.sleep(10)
    assert told == [pytest.approx(0.5, abs=0.01)]
    told.clear()
    Whole(needed=3).undo(made_of([part for part in parts if part.ended]), lambda _: told.append(clock()))
    assert len(told) == 1


def made_of(parts: list[Part], *, granted: bool = False) -> Request:
    request = asked()
    request.parts = parts
    for part in parts:
        part.fence = int(granted)
    return request


class Whole(Composite):
    """Made of parts of which *needed* are enough."""

    kind, name = "whole", "orders"

    def __init__(self, home: ScriptedGrantor | None = None, needed: int = 2) -> None:
        self.context = (home or ScriptedGrantor()).context
        self._needed = needed

    def needed(self, request: Request) -> int:
        return self._needed

    def grant(self, request: Request) -> NoReturn:
        raise NotImplementedError


def parts_of(*withdrawals: bool | Exception | After | list[bool | Exception]) -> list[Part]:
    """Return a part for each, undone with those answers."""
    each = [answer if isinstance(answer, list) else [answer] for answer in withdrawals]
    return [Part(ScriptedGrantor(withdrawals=answers), asked()) for answers in each]


def asked() -> Request:
    return Request(30.0, 1, wait=False)


Ending = bool | Exception | After
ToldAt = tuple[float, bool | Exception]


def in_turn(endings: list[Ending]) -> list[After]:
    """Return them as answers after a tenth, two and three tenths of a second, where they say no other time."""
    pairs = zip((0.1, 0.2, 0.3), endings, strict=True)
    return [ending if isinstance(ending, After) else After(delay, ending) for delay, ending in pairs]


class Told:
    def __init__(self) -> None:
        self.all: list[Any] = []

    def __call__(self, answer: bool | Exception) -> None:
        self.all.append((clock(), answer))


LOST = RedisConnectionError("lost")
REFUSED = NoPermissionError("refused")


@pytest.mark.parametrize(("endings", "needed", "told"), [
    ([REFUSED, After(60, True), After(60, True)], 3, (0.1, REFUSED)), ([True, LOST, REFUSED], 3, (0.3, REFUSED)),
    ([REFUSED, REFUSED, After(60, True)], 2, (0.2, REFUSED)), ([LOST, REFUSED, REFUSED], 2, (0.3, REFUSED)),
    ([REFUSED, LOST, LOST], 2, (10.0, LOST)), ([REFUSED, True, True], 2, (0.3, True)),
])  # fmt: skip
async def test_refusals_are_told_once_others_do_not_suffice(endings: list[Ending], needed: int, told: ToldAt) -> None:
    parts = parts_of(*in_turn(endings))
    home = ScriptedGrantor()
    release = home.context.undos.begin(Whole(home, needed), made_of(parts, granted=True), clock() + 30, wait=10)
    assert release.waited is not None
    await release.waited
    try:
        outcome: object = release.outcome()
    except RedisError as error:
        outcome = error
    assert clock() == pytest.approx(told[0])
    assert outcome is told[1]
    for stub in (home, *map(stub_of, parts)):
        stub.session.close()


@pytest.mark.parametrize(("renewals", "needed", "told"), [
    ([True, True, True], 3, (0.3, True)), ([True, True, False], 3, (0.3, False)),
    ([False, True, True], 3, (0.1, False)), ([True, True, True], 2, (0.2, True)),
    ([True, False, True], 2, (0.3, True)), ([False, False, True], 2, (0.2, False)),
    ([LOST, LOST, True], 2, (0.2, LOST)), ([LOST, True, True], 3, (0.3, LOST)),
])  # fmt: skip
async def test_a_renewal_of_all_is_known_as_soon_as_possible(renewals: list[Ending], needed: int, told: ToldAt) -> None:
    heard = Told()
    parts = [Part(ScriptedGrantor(renewals=[answer]), asked()) for answer in in_turn(renewals)]
    Whole(needed=needed).renew(made_of(parts), 12.5, heard)
    await asyncio.sleep(1)
    assert heard.all == [(pytest.approx(told[0]), told[1])]
    assert all(stub_of(part).asked[0].ttl == 12.5 for part in parts)


@pytest.mark.parametrize("revoked", [True, False])
async def test_what_cannot_be_renewed_says_whether_a_part_of_it_was_revoked(revoked: bool) -> None:
    parts = [Part(ScriptedGrantor(renewals=[answer]), asked()) for answer in (True, False)]
    whole = made_of(parts)
    for part in parts:
        part.request.was_reached()
    whole.was_reached()
    whole.begin_lease()
    if revoked:
        parts[1].request.was_revoked()
    Whole().renew(whole, 30.0, Told())
    await asyncio.sleep(1)
    assert whole.revoked is revoked


async def test_another_thread_renews_each_part_by_its_own_commands_for_the_server_of_that_part() -> None:
    """Those of the session belong to its loop."""
    by: list[Pipelines | None] = []

    def renew(request: Request, ttl: float, tell: ResultCallback, thread: Pipelines | None = None) -> None:
        by.append(thread)
        tell(True)

    stubs = [ScriptedGrantor() for _ in range(2)]
    for stub in stubs:
        stub.renew = renew  # type: ignore[method-assign]  # to see by whose commands
    parts = [Part(stub, asked()) for stub in stubs]
    own = Pipelines(asyncio.get_running_loop(), clock, lambda: None, lambda: None)
    for thread in (own, None):
        Whole().renew(made_of(parts), 30.0, Told(), thread)
    assert by == [own, own, None, None]


@pytest.mark.parametrize(("granted", "endings", "needed", "told"), [
    (True, [True, True, True], 3, (0.3, True)), (True, [False, True, True], 3, (0.1, False)),
    (True, [True, True, True], 2, (0.2, True)), (True, [False, False, True], 2, (0.2, False)),
    (True, [True, False, True], 2, (0.3, True)), (False, [True, False, True], 1, (0.1, True)),
    (False, [True, False, True], 2, (0.2, True)), (False, [True, False, True], 3, (0.3, True)),
])  # fmt: skip
async def test_a_release_or_undo_of_all_is_known_as_soon_as_possible(
    granted: bool, endings: list[Ending], needed: int, told: ToldAt
) -> None:
    heard, again = Told(), Told()
    parts = parts_of(*in_turn(endings))
    Whole(needed=needed).undo(made_of(parts, granted=granted), heard)
    await asyncio.sleep(1)
    assert heard.all == [(pytest.approx(told[0]), told[1])]
    Whole(needed=needed).undo(made_of(parts, granted=granted), again)
    assert again.all == [(1.0, told[1])], "what is released already is known"
    assert [part.ended for part in parts] == endings
    assert [len(stub_of(part).times("withdraw")) for part in parts] == [1, 1, 1]


async def test_a_release_that_some_did_not_confirm_is_known_when_the_last_has_answered() -> None:
    heard = Told()
    (first, second, third) = parts = parts_of(LOST, LOST, After(20, True))
    for part in (first, second):
        part.grantor.context.schedule_idle_close()  # whose session ends, and with it what undoes the part
    Whole().undo(made_of(parts, granted=True), heard)
    third.grantor.context.tokens[b"kept"] = third.request
    await asyncio.sleep(19)
    assert not heard.all
    await asyncio.sleep(100)
    ((_, answer),) = heard.all
    assert answer is LOST


async def test_a_release_after_a_release_whose_answer_was_lost_counts_as_live() -> None:
    """That one must have ended it."""
    heard = Told()
    parts = parts_of([LOST, False], True)
    Whole().undo(made_of(parts, granted=True), heard)
    await asyncio.sleep(1)
    assert ([answer for _, answer in heard.all], [part.ended for part in parts]) == ([True], [True, True])


async def test_the_undo_of_nothing_is_told_at_once_and_ended_nothing() -> None:
    heard = Told()
    Whole().undo(made_of([]), heard)
    assert [answer for _, answer in heard.all] == [False]


async def test_a_part_that_cannot_be_reached_is_tried_for_as_long_as_it_may_last_and_then_told() -> None:
    heard = Told()
    (part,) = parts_of(LOST)
    part.grantor.context.tokens[b"kept"] = part.request
    Whole(needed=1).undo(made_of([part]), heard)
    await asyncio.sleep(100)
    ((at, answer),) = heard.all
    assert 28 <= at <= 30
    assert answer is True, "nothing of it is left"
    assert part.ended is None


def stub_of(part: Part) -> ScriptedGrantor:
    assert isinstance(part.grantor, ScriptedGrantor)
    return part.grantor


def ballot_of(size: int, cast: list[str]) -> Ballot:
    ballot = Ballot(size, quorum_of(size))
    for at, vote in enumerate(cast):
        if vote == "granted":
            ballot.yes[at] = 100 + at
        elif vote == "busy":
            ballot.no[at] = float(at)
        else:
            ballot.failed[at] = OSError()
    return ballot


def outcome_of(size: int, needed: int, words: Sequence[str]) -> str:
    if words.count("yes") >= needed:
        return "yes"
    return "no" if words.count("no") > size - needed else "open"


@pytest.mark.parametrize("patient", [False, True])
@one_by_one("size, needed", [(size, needed) for size in range(1, 5) for needed in range(1, size + 1)])
def test_a_count_reports_once_as_soon_as_no_further_answer_can_change_it(size: int, needed: int, patient: bool) -> None:
    """A patient one gives up only when all have answered. Of the failures, the last is reported."""
    meaning = ("yes", "no", "failed")
    for words in product(meaning, repeat=size):
        told: list[bool | Exception] = []
        count_answer = counting(size, needed, told.append, patient=patient)
        expected: list[bool | Exception] = []
        verdict: bool | Exception = OSError()
        for count, word in enumerate(words, 1):
            answer = OSError() if word == "failed" else word == "yes"
            verdict = answer if isinstance(answer, Exception) else verdict
            count_answer(answer)
            rests = product(meaning, repeat=size - count)
            outcomes = {outcome_of(size, needed, [*words[:count], *rest]) for rest in rests}
            known = len(outcomes) == 1 and not (outcomes == {"open"} and patient and count < size)
            if known and not expected:
                expected.append(verdict if outcomes == {"open"} else outcomes == {"yes"})
            assert told == expected, words[:count]


@one_by_one("size", range(1, 6))
def test_a_vote_is_decided_as_soon_as_missing_answers_cannot_change_it(size: int) -> None:
    def result(votes: Sequence[str]) -> tuple[bool, bool]:
        granted, busy = votes.count("granted"), votes.count("busy")
        return 2 * granted > size, 2 * (granted + busy) > size

    words = ("granted", "busy", "failed")
    for count in range(size + 1):
        for votes in product(words, repeat=count):
            results = {result([*votes, *rest]) for rest in product(words, repeat=size - count)}
            ballot = ballot_of(size, list(votes))
            assert ballot.decided == (len(results) == 1), votes
            assert (ballot.won, ballot.answered, ballot.pending) == (*result(votes), size - count)


@one_by_one("granted, busy, seconds", [
        (0, [4.0, 2.0, 9.0], 4.0), (1, [4.0, 2.0], 2.0), (0, [4.0, 2.0], 4.0), (1, [3.0], 3.0), (0, [3.0], 3.0),
        (2, [3.0], 0.0), (0, [], 0.0), (1, [], 0.0), (3, [], 0.0),
    ])  # fmt: skip
def test_a_quorum_is_free_when_enough_leases_have_ended(granted: int, busy: list[float], seconds: float) -> None:
    ballot = Ballot(3, 2, dict.fromkeys(range(granted), 7), dict(enumerate(busy, granted)))
    assert ballot.free_after() == seconds
