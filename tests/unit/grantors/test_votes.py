"""The arithmetic of votes, for every number of servers and every order of their answers."""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolocks._grantors.votes import Vote, VoteCount, next_fence, quorum_of
from tests.support.cases import one_by_one

sizes = st.integers(1, 9)
answers = st.sampled_from([True, False, OSError("silent")])


@given(sizes)
def test_two_majorities_have_a_server_in_common(size: int) -> None:
    assert 2 * quorum_of(size) > size
    assert quorum_of(size) <= size


@st.composite
def votes(draw: st.DrawFn) -> tuple[int, list[str]]:
    size = draw(sizes)
    return size, draw(st.lists(st.sampled_from(["granted", "busy", "failed"]), max_size=size))


def ballot_of(size: int, cast: list[str]) -> Vote:
    ballot = Vote(size)
    for at, vote in enumerate(cast):
        if vote == "granted":
            ballot.granted[at] = 100 + at
        elif vote == "busy":
            ballot.busy[at] = float(at)
        else:
            ballot.failed[at] = OSError()
    return ballot


@given(votes())
def test_a_vote_is_won_by_a_majority_of_all_servers_and_not_of_the_answering_servers(
    cast: tuple[int, list[str]],
) -> None:
    size, votes = cast
    assert ballot_of(size, votes).won == (votes.count("granted") > size / 2)


@given(votes(), st.randoms())
def test_a_decision_stands_whatever_the_missing_answers_are(cast: tuple[int, list[str]], dice: object) -> None:
    size, votes = cast
    early = ballot_of(size, votes)
    if not early.decided:
        return
    for rest in ("granted", "busy", "failed"):
        late = ballot_of(size, votes + [rest] * (size - len(votes)))
        assert late.won == early.won
        assert late.won or late.answered == early.answered


@given(votes())
def test_a_vote_is_decided_when_all_have_answered(cast: tuple[int, list[str]]) -> None:
    size, votes = cast
    ballot = ballot_of(size, votes)
    assert ballot.pending == size - len(votes)
    assert ballot.decided or ballot.pending


def test_a_hung_server_does_not_hold_up_a_majority() -> None:
    assert ballot_of(5, ["granted"] * 3).decided
    assert ballot_of(5, ["busy"] * 3).decided
    assert ballot_of(5, ["failed"] * 3).decided


def test_too_few_answers_are_told_from_a_busy_majority() -> None:
    assert ballot_of(5, ["busy", "busy", "granted", "failed", "failed"]).answered
    assert not ballot_of(5, ["busy", "granted", "failed", "failed", "failed"]).answered


def test_it_is_not_known_whether_enough_answer_before_they_have() -> None:
    assert not ballot_of(5, ["failed", "failed", "busy"]).decided


def test_a_quorum_is_free_when_as_many_leases_have_ended_as_are_missing() -> None:
    ballot = Vote(5, granted={0: 7}, busy={1: 9.0, 2: 1.0, 3: 5.0})
    assert ballot.free_after() == 5.0
    assert Vote(3, granted={0: 7, 1: 8}).free_after() == 0.0


@given(st.lists(st.integers(1, 2**53 - 2), min_size=1))
def test_the_next_fencing_token_is_larger_than_all_that_stood_in_the_way(refusals: list[int]) -> None:
    assert next_fence(refusals) > max(refusals)


@given(st.lists(answers, min_size=1, max_size=9), st.data())
def test_a_tally_tells_once_and_what_the_last_answer_would_not_change(
    given: list[bool | Exception], data: st.DataObject
) -> None:
    needed = data.draw(st.integers(1, len(given)))
    told: list[bool | Exception] = []
    tally = VoteCount(len(given), needed, told.append)
    for answer in given:
        tally.note(answer)
    (verdict,) = told
    if verdict is True:
        assert given.count(True) >= needed
    elif verdict is False:
        assert given.count(False) > len(given) - needed
    else:
        assert given.count(True) < needed
        assert given.count(False) <= len(given) - needed


@given(st.lists(answers, min_size=1, max_size=9))
def test_a_patient_tally_gives_up_only_when_all_have_answered(given: list[bool | Exception]) -> None:
    told: list[bool | Exception] = []
    tally = VoteCount(len(given), quorum_of(len(given)), told.append, patient=True)
    for answer in given[:-1]:
        tally.note(answer)
    assert not any(isinstance(verdict, Exception) for verdict in told)
    tally.note(given[-1])
    assert len(told) == 1


# Every vote of a few servers.


def outcome_of(size: int, needed: int, words: Sequence[str]) -> str:
    if words.count("yes") >= needed:
        return "yes"
    return "no" if words.count("no") > size - needed else "open"


@pytest.mark.parametrize("patient", [False, True])
@one_by_one("size, needed", [(size, needed) for size in range(1, 5) for needed in range(1, size + 1)])
def test_a_tally_tells_as_soon_as_no_further_answer_can_change_it(size: int, needed: int, patient: bool) -> None:
    """A patient one gives up only when all have answered. Of the failures, the last is told."""
    meaning = ("yes", "no", "failed")
    for words in product(meaning, repeat=size):
        told: list[bool | Exception] = []
        tally = VoteCount(size, needed, told.append, patient=patient)
        verdict: bool | Exception = OSError()
        for count, word in enumerate(words, 1):
            answer = OSError() if word == "failed" else word == "yes"
            verdict = answer if isinstance(answer, Exception) else verdict
            tally.note(answer)
            rests = product(meaning, repeat=size - count)
            outcomes = {outcome_of(size, needed, [*words[:count], *rest]) for rest in rests}
            if len(outcomes) == 1 and not (outcomes == {"open"} and patient and count < size):
                assert told == [verdict if outcomes == {"open"} else outcomes == {"yes"}], words[:count]
                break
            assert not told, words[:count]


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
            assert (ballot.won, ballot.answered) == result(votes)


@one_by_one("granted, busy, seconds", [
        (0, [4.0, 2.0, 9.0], 4.0), (1, [4.0, 2.0], 2.0), (0, [4.0, 2.0], 4.0), (1, [3.0], 3.0), (0, [3.0], 3.0),
        (2, [3.0], 0.0), (0, [], 0.0), (1, [], 0.0), (3, [], 0.0),
    ])  # fmt: skip
def test_a_quorum_of_three_is_free_when_so_many_leases_have_ended_as_far_as_that_is_known(
    granted: int, busy: list[float], seconds: float
) -> None:
    ballot = Vote(3, dict.fromkeys(range(granted), 7), dict(enumerate(busy, granted)))
    assert ballot.free_after() == seconds


def test_the_next_fencing_token_is_the_one_after_the_largest() -> None:
    assert next_fence([3, 11, 7]) == 12


@one_by_one("size, quorum", [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_a_quorum_is_the_smallest_majority(size: int, quorum: int) -> None:
    assert quorum_of(size) == Vote(size).quorum == quorum
