"""A semaphore's limit: declared by its first user, changed by the latest word, for everyone at once."""

import pytest

from tests.scripts.calls import DAY_MS, Grant, Refused, Scripts
from tests.scripts.states import line, listening, pttl, sessions

_MONTH_MS = 30 * DAY_MS


@pytest.fixture
def pinned(full: Scripts) -> Scripts:
    """Pinned at three, all held by ann."""
    full.resize(3, pin=1)
    return full


@pytest.mark.parametrize("verb", ["grant", "renew", "renew_many", "recheck", "resize", "declare"])
def test_a_pinned_limit_is_remembered_for_thirty_days_from_its_last_use(pinned: Scripts, verb: str) -> None:
    pinned.release("ann", permits=3)
    pinned.granted("ann")
    pinned.redis.pexpire(pinned.key("meta"), DAY_MS)
    if verb == "grant":
        pinned.redis.hset(pinned.key("meta"), "fence", 1)  # the last one was long ago
        pinned.granted("ben")
    elif verb == "renew":
        assert pinned.renew("ann", 30_000)
    elif verb == "renew_many":
        assert pinned.renew_many((pinned, "ann", 30_000)) == [True]
    elif verb == "resize":
        pinned.resize(3)
    elif verb == "declare":
        pinned.redis.hset(pinned.key("meta"), "fence", 1)
        pinned.granted("ben", limit=5, declare=True)
    else:
        pinned.redis.delete(pinned.key("holders"))
        pinned.recheck("ben")
    assert _MONTH_MS - 60_000 < pttl(pinned, pinned.key("meta")) <= _MONTH_MS


def test_a_limit_that_is_not_pinned_is_remembered_for_a_day(full: Scripts) -> None:
    full.resize(3, pin=1)
    full.resize(3, pin=0)
    full.redis.pexpire(full.key("meta"), 1_000)
    assert full.renew("ann", 30_000)
    assert pttl(full, full.key("meta")) <= DAY_MS


def test_a_waiter_that_is_refused_when_it_asks_again_is_not_in_the_queue_any_more(full: Scripts) -> None:
    """Its first answer was lost, and the limit has been lowered since: a turn later on would be nobody's (P7)."""
    full.queued("ben", permits=2)
    full.queued("cat", permits=3)
    full.resize(2)
    assert full.grant("cat", permits=3) == Refused(2)
    assert line(full) == ["ben"]


def test_a_higher_limit_is_handed_over_in_the_reply(full: Scripts) -> None:
    """And by message, to other sessions."""
    for who, session in (("ben", "home"), ("cat", "away"), ("dan", "home")):
        full.queued(who, session=session)
    with listening(full, "away") as inbox:
        assert [grant.who for grant in full.resize(5)[1]] == ["ben"]
        assert [message.who for message in inbox.messages()] == ["cat"]
    assert line(full) == ["dan"]


def test_a_lower_limit_costs_no_waiter_its_place_in_the_queue(full: Scripts) -> None:
    """Less than nothing is free then, so whether the first in line can be reached does not matter yet."""
    full.queued("ben", session="away")
    full.queued("cat")
    full.resize(1)
    assert sessions(full) == ["away", "home"]


def test_a_lower_limit_refuses_in_the_reply_the_waiters_that_want_more(full: Scripts) -> None:
    full.queued("ben", permits=3)
    full.queued("cat", permits=2)
    full.queued("dan")
    assert full.resize(1)[1] == [Grant("ben", -1, 1), Grant("cat", -1, 1)]
    assert line(full) == ["dan"]


def test_a_refusal_names_a_large_limit_in_digits(full: Scripts) -> None:
    full.resize(1_000_000_000)
    full.granted("ben", permits=999_999_997)
    full.queued("cat", permits=1_000_000_000, session="away")
    with listening(full, "away") as inbox:
        full.resize(999_999_999)
        [text] = inbox.texts()
    assert text.split(b" ")[1:3] == [b"-1", b"999999999"]


@pytest.mark.parametrize("wait", [True, False])
def test_the_limit_is_kept_for_a_day_and_longer_than_any_lease(semaphore: Scripts, wait: bool) -> None:
    """Also one declared by a caller that gets nothing."""
    for declare in (lambda: semaphore.grant("zoe", permits=9, wait=wait), lambda: semaphore.resize(5)):
        declare()
        assert DAY_MS - 60_000 < pttl(semaphore, semaphore.key("meta")) <= DAY_MS
    semaphore.granted("ann", ttl_ms=5 * DAY_MS)
    semaphore.resize(2)
    assert pttl(semaphore, semaphore.key("meta")) > 5 * DAY_MS
