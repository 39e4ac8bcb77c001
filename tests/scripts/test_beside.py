"""The short answer: one that asks for the first time joins others of its session, who are told all there is to tell."""

import pytest
from redis.exceptions import ResponseError

from tests.scripts.calls import TTL, Grant, Granted, QueuedBeside, Scripts, on_server
from tests.scripts.states import configured, fence_of, line, now_us, tickets


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
