"""The arithmetic of votes, for a few servers and every order of their answers."""

from collections.abc import Sequence
from itertools import product

import pytest

from aiolocks._grantors.votes import Vote, VoteCount, next_fence, quorum_of
from tests.support.cases import one_by_one


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


def outcome_of(size: int, needed: int, words: Sequence[str]) -> str:
    if words.count("yes") >= needed:
        return "yes"
    return "no" if words.count("no") > size - needed else "open"


@pytest.mark.parametrize("patient", [False, True])
@one_by_one("size, needed", [(size, needed) for size in range(1, 5) for needed in range(1, size + 1)])
def test_a_tally_tells_once_as_soon_as_no_further_answer_can_change_it(size: int, needed: int, patient: bool) -> None:
    """A patient one gives up only when all have answered. Of the failures, the last is told."""
    meaning = ("yes", "no", "failed")
    for words in product(meaning, repeat=size):
        told: list[bool | Exception] = []
        tally = VoteCount(size, needed, told.append, patient=patient)
        expected: list[bool | Exception] = []
        verdict: bool | Exception = OSError()
        for count, word in enumerate(words, 1):
            answer = OSError() if word == "failed" else word == "yes"
            verdict = answer if isinstance(answer, Exception) else verdict
            tally.note(answer)
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
    ballot = Vote(3, dict.fromkeys(range(granted), 7), dict(enumerate(busy, granted)))
    assert ballot.free_after() == seconds


def test_the_next_fencing_token_is_the_one_after_the_largest() -> None:
    assert next_fence([3, 11, 7]) == 12


@one_by_one("size, quorum", [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_a_quorum_is_the_smallest_majority(size: int, quorum: int) -> None:
    assert quorum_of(size) == Vote(size).quorum == quorum
