"""`grant` that has to wait: places in line, their order, and how long they last."""

import pytest

from tests.scripts.calls import LIFE, Scripts, told_either_way
from tests.scripts.states import die, keys, line, listening, now_us, pttl, sessions, tickets

_HOUR_US = 3_600_000_000


def _in_line(scripts: Scripts, who: str, session: str, ticket: int) -> None:
    """Write down a waiter from when the clock was elsewhere."""
    scripts.redis.zadd(scripts.key("waiters", session=session), {scripts.entry(who): ticket})
    if len(line(scripts, session)) == 1:
        scripts.redis.zadd(scripts.key("queue"), {session: ticket})


def _clock_steps_back(scripts: Scripts) -> None:
    """By an hour: all tickets lie that much further ahead."""
    for key in keys(scripts):
        if key == scripts.key("highest"):
            scripts.redis.incrby(key, _HOUR_US)
        elif key == scripts.key("queue") or key.startswith(scripts.keys.part(b"q:")):
            for member in scripts.redis.zrange(key, 0, -1):
                scripts.redis.zincrby(key, _HOUR_US, member)


def _two_sessions_wait(scripts: Scripts) -> int:
    """One has three waiters, of whom the queue shows the first. Return the newest ticket, an hour ahead of now."""
    for who, session in (("a1", "away"), ("b1", "home"), ("a2", "away"), ("a3", "away")):
        scripts.queued(who, session=session)
    _clock_steps_back(scripts)
    return max(tickets(scripts, "away").values())


def test_a_waiter_that_comes_back_with_an_old_ticket_has_its_old_place(held: Scripts) -> None:
    """After a restart of Redis or a long silence, waiters that were forgotten ask anew."""
    old = held.queued("ben", session="away").ticket
    held.queued("cat", session="home")
    die(held, "away")
    held.queued("dan", session="away")
    assert sessions(held) == ["home", "away"], "the place of those who are forgotten is not that of others"
    assert held.queued("ben", session="away", ticket=old).ticket == old
    assert sessions(held) == ["away", "home"]


def test_an_old_ticket_from_before_the_clock_stepped_back_is_no_worse_than_a_new_one(held: Scripts) -> None:
    ticket = held.queued("ben", ticket=now_us(held) + _HOUR_US).ticket
    assert ticket <= now_us(held)


@pytest.mark.parametrize("waiting", [["away"], ["home"], ["home", "home"], ["away", "third"], ["home", "away"]])
def test_a_newcomer_stands_behind_waiters_from_before_the_clock_stepped_back(held: Scripts, waiting: list[str]) -> None:
    """Also behind those of an older version, which does not write down its newest ticket."""
    last = now_us(held) + _HOUR_US
    for at, session in enumerate(waiting, 1 - len(waiting)):
        _in_line(held, f"w{at}w", session, last + at)
    assert held.queued("dan").ticket == last + 1


@pytest.mark.parametrize("session", ["home", "third"])
def test_a_newcomer_stands_behind_all_other_sessions_after_the_clock_stepped_back(held: Scripts, session: str) -> None:
    last = _two_sessions_wait(held)
    assert [held.queued(who, session=session).ticket for who in ("b2", "b3")] == [last + 1, last + 2]


def test_the_newest_ticket_is_written_down_for_a_day_and_never_falls(held: Scripts) -> None:
    last = _two_sessions_wait(held)
    held.queued("b2", session="home")
    held.queued("eve", session="third", ticket=5)  # one that comes back to its old place
    assert int(held.redis.get(held.key("highest"))) >= last + 1
    assert 0 < pttl(held, held.key("highest")) <= 24 * 3_600_000


def test_a_line_lives_by_the_newest_word_even_when_that_is_shorter(held: Scripts) -> None:
    """W3: a lease handed to a session that has stopped must find its other waiters gone when it lapses."""
    held.queued("ben", life_ms=5_000)
    assert 4_000 < pttl(held, held.key("waiters")) <= 5_000
    held.queued("cat", life_ms=2_000)
    assert 0 < pttl(held, held.key("waiters")) <= 2_000


def test_the_queue_ends_though_the_lock_does_not(lock: Scripts) -> None:
    lock.redis.set(lock.keys.base, "plain-token")
    lock.queued("ben")
    assert 0 < pttl(lock, lock.key("queue")) <= 2 * LIFE


@told_either_way
def test_the_answer_counts_the_subscribers_of_this_session(held: Scripts) -> None:
    assert held.queued("ben").subscribers == 0
    with listening(held, "home"):
        assert held.queued("ben").subscribers == 1
        assert held.queued("cat", session="away").subscribers == 0


def test_the_answer_names_the_last_fencing_token(exclusive: Scripts) -> None:
    """W5: whoever waits believes no grant that is older than this."""
    fence = exclusive.granted("ann").fence
    assert exclusive.queued("ben").fence == fence


def test_the_answer_names_the_last_fencing_token_though_another_library_holds_it(lock: Scripts) -> None:
    """It puts no fencing token there."""
    fence = lock.granted("ann").fence
    lock.release("ann")
    lock.redis.set(lock.keys.base, "plain-token")
    assert lock.queued("ben").fence == fence
    assert lock.recheck("ben").fence == fence


@pytest.mark.parametrize("written", ["inf", "1e300", "0x7fffffffffffffff", "9223372036854775807", "2000000000000000"])
def test_a_number_that_is_no_ticket_in_the_newest_key_is_ignored_and_replaced(held: Scripts, written: str) -> None:
    """With it, tickets would grow beyond 2^63, which a reply says as a negative number: as a grant."""
    held.redis.set(held.key("highest"), written)
    before = now_us(held)
    drawn = [held.queued(who).ticket for who in ("ben", "cat")]
    assert before <= drawn[0] < drawn[1] <= now_us(held)
    assert int(held.redis.get(held.key("highest")) or 0) == drawn[1]
    assert held.redis.ttl(held.key("highest")) > 0
