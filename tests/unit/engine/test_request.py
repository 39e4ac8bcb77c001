"""What one acquisition knows of itself: what has been asked, and from when on a grant counts."""

import asyncio
import gc
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import LimitMismatchError, LockError
from aiolocks._core.answers import resolve
from aiolocks._core.timing import deadline
from aiolocks._core.tokens import LENGTH, session_of
from aiolocks._engine.request import A_DAY, MOVES, Granted, Phase, Place, Request
from aiolocks._grantors.parts import Part
from aiolocks._grantors.uptime import MinUptime
from aiolocks._redis.pipeline import PendingCall
from tests.support.extension import Adding

SOME_LINK: Any = object()


def request(ttl: float = 30.0, permits: int = 1, token: bytes | None = None) -> Request:
    return Request(ttl, permits, wait=True, token=token)


def attempt(of: Request, sent_at: float) -> PendingCall:
    nothing: Any = None
    call = PendingCall(nothing, (), nothing, 1.0, of, nothing, sent_at)
    call.link = SOME_LINK
    of.sent(call)
    return call


def sent() -> Request:
    one = request()
    attempt(one, 0.0)
    return one


def under_way(of: Request) -> list[Any]:
    return list(of.unanswered)


def test_a_request_has_a_token_of_its_own_and_is_queued_with_its_terms() -> None:
    assert request().token != request().token
    assert request(token=b"mine").token == b"mine"
    # Behind what older versions of the scripts look for.
    assert request(1.5, permits=3, token=b"mine").entry() == b"mine 1500 3"
    assert Request(1.5, 3, wait=True, token=b"mine", extensions=(MinUptime(31),)).entry() == b"mine 1500 3 31"


def test_a_holder_acts_for_as_much_as_the_server_was_told() -> None:
    """The server counts whole milliseconds; those that were rounded away are nobody's."""
    exact, rounded = request(30.0), request(0.1234)
    assert (exact.terms.ttl_ms, exact.terms.ttl, exact.terms.valid_for) == (30_000, 30.0, deadline(0.0, 30.0))
    assert (rounded.terms.ttl_ms, rounded.terms.ttl, rounded.terms.valid_for) == (123, 0.123, deadline(0.0, 0.123))


@pytest.mark.parametrize("follows", Phase)
@pytest.mark.parametrize("phase", Phase)
def test_an_answer_moves_a_request_forward_as_the_table_says(phase: Phase, follows: Phase) -> None:
    one = request()
    one.phase = phase
    if follows > phase and follows not in MOVES[phase]:
        with pytest.raises(RuntimeError, match=f"{phase.name} cannot become {follows.name}"):
            one._move(follows)
        assert one.phase is phase
    else:
        one._move(follows)
        assert one.phase is max(phase, follows), "late answers come in any order"


async def test_a_request_goes_through_its_phases() -> None:
    one = request()
    phases = [one.phase]
    call = attempt(one, 1.0)
    phases.append(one.phase)
    one.not_run(call)
    phases.append(one.phase)
    call, late = attempt(one, 2.0), attempt(one, 3.0)
    one.answered(call)
    one.queued(7, 2.0, 0, b"home")
    phases.append(one.phase)
    assert one.grant(8)
    phases.append(one.phase)
    one.new_turn()
    phases.append(one.phase)
    one.granted(late)
    phases.append(one.phase)
    one.answered(late)
    one.was_revoked()
    phases.append(one.phase)
    assert [phase.name for phase in phases] == [
        "NEW", "SENT", "NEW", "QUEUED", "GRANTED", "ANSWERED", "GRANTED", "REVOKED"
    ]  # fmt: skip
    assert repr(one) == "<Request revoked>"
    new = request()
    new.give_up(asyncio.get_running_loop())
    assert repr(new) == "<Request new given up>"


def test_a_request_that_was_not_granted_has_nothing_to_undo_and_no_fencing_token() -> None:
    new, not_run, tried = request(), request(), request()
    not_run.not_run(attempt(not_run, 1.0))
    attempt(tried, 5.0)
    attempt(tried, 9.0)
    assert [one.tried for one in (new, not_run, tried)] == [False, False, True]
    assert (new.asked_at, new.place.ticket, new.silences) == (None, 0, 0)
    assert tried.asked_at == 5
    # A part was not granted either: all of them together are.
    no_grantor: Any = None
    assert not Part(no_grantor, request()).fence


def test_what_was_answered_is_under_way_no_more_and_the_other_attempts_are() -> None:
    one = request()
    first, second, third = (attempt(one, at) for at in (1.0, 2.0, 3.0))
    one.answered(second)
    assert under_way(one) == [first, third]
    one.not_run(first)
    assert under_way(one) == [third]
    one.answered(third)
    assert under_way(one) == []
    assert one.tried
    unheard = request()
    call = attempt(unheard, 1.0)
    call.link = None  # the answer did not come from Redis
    unheard.answered(call)
    assert not unheard.tried
    unheard.answered(attempt(unheard, 2.0))
    call = attempt(unheard, 3.0)
    call.link = None
    unheard.answered(call)
    assert unheard.tried, "it had been reached before"


def test_an_undo_is_worth_trying_for_as_long_as_a_request_may_still_arrive() -> None:
    short, long = request(30.0), request(100.0)
    assert (short.undo_for, long.undo_for) == (30, 100)
    attempt(short, 1.0)
    attempt(long, 1.0)
    assert (short.undo_for, long.undo_for) == (60, 100)


def test_a_grant_in_the_reply_counts_from_when_that_very_attempt_left() -> None:
    one = request()
    first, second = attempt(one, 1.0), attempt(one, 2.0)
    one.granted(second)
    assert one.valid_from == 2
    assert under_way(one) == [first], "it may still come"
    one.granted(first)
    assert under_way(one) == []
    assert one.tried
    assert one.undo_for == one.terms.ttl, "nothing is under way"


async def test_a_request_that_was_given_up_has_no_turn_and_wakes_no_caller() -> None:
    before, after = request(), request()
    turn = before.turn
    before.give_up(asyncio.get_running_loop())
    after.give_up(asyncio.get_running_loop())
    await asyncio.sleep(0)
    assert turn.cancelled()
    assert after.turn.cancelled()
    assert not request().turn.done()
    one = request()
    assert not one.grant(5)
    attempt(one, 1.0)
    one.give_up(asyncio.get_running_loop())
    assert not one.grant(5)


async def test_a_turn_that_was_told_counts_from_the_newest_answer_that_it_waits_or_the_first_attempt() -> None:
    one, other = request(), request()
    for waiter in (one, other):
        attempt(waiter, 1.0)
        attempt(waiter, 2.0)
    one.queued(7, 3.0, 0, b"home")
    one.queued(7, 2.0, 0, b"home")  # overtaken by the other
    assert one.place.ticket == 7
    for waiter in (one, other):
        assert waiter.grant(5)
    assert one.turn.result() == Granted(5, 3.0)
    assert other.turn.result() == Granted(5, 1.0), "which of them was granted is not known"


async def test_news_that_are_not_newer_than_the_answer_that_it_waits_are_ignored() -> None:
    """W5: that lease has lapsed since."""
    one = sent()
    one.queued(7, 1.0, 40, b"home")
    one.queued(7, 2.0, 30, b"home")
    assert not one.grant(39)
    assert not one.grant(40)
    assert not one.turn.done()
    assert one.grant(41)
    assert not one.grant(42), "it has its turn"
    assert one.turn.result().fence == 41
    found = sent()
    found.queued(7, 1.0, 40, b"home")
    assert found.grant(40, 9.0), "a re-check found it"
    assert found.turn.result() == Granted(40, 9.0)
    for found.place in (Place(7 * 10**15, 40), Place(7, 7 * 10**15)):
        assert [found.far_behind(7 * 10**15 + A_DAY + late, 3.0) for late in (3_000_000, 3_000_001)] == [False, True]


async def test_a_waiter_is_woken_by_its_turn_alone_and_again_by_the_next() -> None:
    asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    one, looked_at, given_up = request(), request(), request()
    turn = looked_at.turn
    given_up.give_up(asyncio.get_running_loop())
    assert one.wait_by(asked)
    assert one.turn is asked
    assert not looked_at.wait_by(asked), "that is waited for already"
    assert looked_at.turn is turn
    assert not given_up.wait_by(asked)
    granted = sent()
    granted.queued(7, 1.0, 0, b"home")
    granted.grant(5)
    granted.new_turn()
    assert not granted.turn.done()
    assert not granted.wait_by(asked), "what the asking ends with must not be taken for the turn"
    assert granted.grant(6)


async def test_why_there_will_be_no_turn_is_told_once_and_not_to_the_log() -> None:
    """The caller may have left; Python would report an exception that nobody looked at."""
    one = request()
    one.fail(RedisConnectionError("first"))
    one.fail(RedisConnectionError("second"))
    assert str(one.turn.exception()) == "first"
    other, answer = request(), asyncio.get_running_loop().create_future()
    other.fail(RedisConnectionError("unheard"))
    resolve(answer, RedisConnectionError("unheard"))
    del other, answer
    gc.collect()
    await asyncio.sleep(0)


async def test_an_answer_is_passed_on_unless_its_caller_has_left() -> None:
    futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
    futures[2].cancel()
    for future, answer in zip(futures, [7, RedisConnectionError("cut"), 7], strict=True):
        resolve(future, answer)
    assert (futures[0].result(), str(futures[1].exception())) == (7, "cut")
    assert futures[2].cancelled()


def test_a_repeated_request_has_a_new_token_and_the_old_place() -> None:
    one = request(1.5, permits=3)
    attempt(one, 1.0)
    one.queued(41, 1.0, 0, b"home")
    one.carry((Adding(),))
    again = one.again()
    assert again.token != one.token
    assert (len(again.token), session_of(again.token)) == (len(one.token), session_of(one.token))
    assert (again.entry(), again.place.ticket) == (again.token + one.entry()[len(one.token) :], one.place.ticket)
    assert (again.wait, again.extensions) == (one.wait, one.extensions)
    again = request(token=b"lease+first").again()
    stem, plus, fresh = again.token.partition(b"+")
    assert (stem, plus, len(fresh)) == (b"lease", b"+", LENGTH)


def test_a_refusal_says_what_the_primitive_says_or_how_many_permits_there_are() -> None:
    one = request(permits=3)
    refused = one.refused("semaphore", "orders", 2)
    assert isinstance(refused, LimitMismatchError)
    assert (refused.name, refused.permits, refused.limit) == ("orders", 3, 2)
    assert "'orders': 3 permits asked for, but its limit is 2" in str(refused)
    one.carry((Adding(),))
    assert isinstance(one.refused("semaphore", "orders", 2), LimitMismatchError)
    one.carry((Adding(refusal=lambda amount: LockError("never", name="orders")),))
    with pytest.raises(LockError, match="never"):
        raise one.refused("lock", "orders", 1)
