"""The short answer: one that asks for the first time joins others of its session, who are told all there is to tell."""

import pytest
from redis.exceptions import ResponseError

from tests.scripts.calls import LIFE, TTL, Grant, Granted, Queued, QueuedBeside, Scripts, Withdrawn, on_server
from tests.scripts.states import configured, die, fence_of, lapse, line, now_us, pttl, sessions, tickets


@pytest.fixture
def waited(lock: Scripts) -> Scripts:
    """Held by ann; ben waits in the session `home`."""
    lock.granted("ann")
    lock.queued("ben")
    return lock


def test_the_short_answer_is_the_ticket_of_a_place_behind_the_others(waited: Scripts) -> None:
    before = now_us(waited)
    for who in ("cat", "dan"):
        answer = waited.grant(who, brief=True)
        assert isinstance(answer, QueuedBeside)
        assert before <= answer.ticket == tickets(waited)[who] <= now_us(waited)
    assert line(waited) == ["ben", "cat", "dan"]
    assert waited.redis.zscore(waited.key("queue"), "home") == tickets(waited)["ben"]
    for holder, heir in (("ann", "ben"), ("ben", "cat")):
        assert waited.release(holder).mine == [Grant(heir, fence_of(waited, heir), TTL)]


def test_the_line_lives_as_long_as_the_others_said(waited: Scripts) -> None:
    """W3: only a re-check, or a request that is answered at length, is a sign of life."""
    waited.redis.pexpire(waited.key("waiters"), 1_500)
    waited.grant("cat", brief=True, life_ms=LIFE)
    assert 0 < pttl(waited, waited.key("waiters")) <= 1_500


@pytest.mark.parametrize("newest_is_known", [True, False])
def test_after_the_clock_stepped_back_it_names_a_place_behind_all_others(
    waited: Scripts, newest_is_known: bool
) -> None:
    last = now_us(waited) + 3_600_000_000
    waited.redis.zadd(waited.key("waiters"), {waited.entry("dan"): last})
    if newest_is_known:
        waited.redis.set(waited.key("highest"), last, ex=60)
    else:
        waited.redis.delete(waited.key("highest"))
    assert waited.grant("cat", brief=True) == QueuedBeside(last + 1)


def test_a_waiter_whose_session_is_dead_gets_the_long_answer_and_a_new_session(waited: Scripts) -> None:
    die(waited, "home")
    assert isinstance(waited.grant("cat", brief=True), Queued)
    assert pttl(waited, waited.key("waiters")) > 0


def test_a_session_that_was_passed_over_is_told_at_length_and_stands_in_line_again(waited: Scripts) -> None:
    waited.queued("dan", session="away")
    waited.redis.zrem(waited.key("queue"), "home")
    assert isinstance(waited.grant("cat", brief=True), Queued)
    assert sessions(waited) == ["home", "away"]


def test_what_has_lapsed_is_handed_over(waited: Scripts) -> None:
    """W7."""
    lapse(waited, "ann")
    answer = waited.grant("cat", brief=True)
    assert isinstance(answer, Queued)
    assert answer.mine == [Grant("ben", fence_of(waited, "ben"), TTL)]


@pytest.mark.parametrize("free", [False, True])
def test_a_request_that_was_undone_before_it_came_is_not_let_in(waited: Scripts, free: bool) -> None:
    """W10."""
    waited.release("cat", tombstone_ms=60_000)
    if free:
        lapse(waited, "ann")
    assert isinstance(waited.grant("cat", brief=True), Withdrawn)
    assert line(waited) == ["ben"]


def test_a_request_that_comes_while_its_token_holds_the_lock_is_answered_with_that_grant(waited: Scripts) -> None:
    """P6: it was long on its way, and a later one has been granted meanwhile."""
    answer = waited.grant("ann", brief=True)
    assert isinstance(answer, Granted)
    assert answer.fence == fence_of(waited, "ann")
    assert line(waited) == ["ben"]


@on_server
def test_at_the_memory_limit_nothing_is_written_and_it_is_an_error(waited: Scripts) -> None:
    with configured(waited, maxmemory=1), pytest.raises(ResponseError, match="used memory"):
        waited.grant("cat", brief=True)
    assert line(waited) == ["ben"]


def test_a_request_sent_twice_beside_others_is_queued_once(waited: Scripts) -> None:
    first = waited.grant("cat", brief=True)
    assert isinstance(first, QueuedBeside)
    assert waited.queued("cat", brief=True).ticket == first.ticket
    assert line(waited) == ["ben", "cat"]
