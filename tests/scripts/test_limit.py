"""A semaphore's limit: declared by its first user, changed by the latest word, for everyone at once."""

import pytest

from tests.scripts.calls import TTL, Busy, Grant, Queued, Refused, Scripts, entry, poller, told_either_way
from tests.scripts.states import contents, fence_of, line, listening, pttl, sessions

_DAY_MS = 86_400_000


def test_the_first_user_declares_the_limit(semaphore: Scripts) -> None:
    assert semaphore.granted("ann", limit=2).limit_before == 0
    assert semaphore.statistics().limit == 2


@pytest.mark.parametrize("wait", [True, False])
def test_a_limit_that_is_only_mentioned_or_declared_again_changes_nothing(full: Scripts, wait: bool) -> None:
    for limit, declare in ((9, False), (3, True)):
        answer = full.grant("ben", limit=limit, declare=declare, wait=wait)
        assert isinstance(answer, Queued if wait else Busy)
        assert answer.limit_before == 0
    assert full.statistics().limit == 3


@pytest.mark.parametrize("wait", [True, False])
def test_a_lower_limit_that_is_declared_is_reported_and_refuses_the_waiters_that_want_more(
    full: Scripts, wait: bool
) -> None:
    full.queued("ben", permits=3)
    answer = full.grant("cat", limit=2, declare=True, wait=wait)
    assert isinstance(answer, Queued if wait else Busy)
    assert answer.limit_before == 3
    assert answer.mine == [Grant("ben", -1, 2)]
    assert line(full) == (["cat"] if wait else [])


_MONTH_MS = 30 * _DAY_MS


@pytest.fixture
def pinned(full: Scripts) -> Scripts:
    """Pinned at three, all held by ann."""
    full.resize(3, pin=1)
    return full


@pytest.mark.parametrize("limit", [2, 4])
def test_no_declaration_changes_a_limit_that_is_pinned(pinned: Scripts, limit: int) -> None:
    answer = pinned.queued("ben", limit=limit, declare=True)
    assert answer.limit_before == 0
    pinned.redis.delete(pinned.key("holders"))  # as Redis does when all leases have run out
    pinned.granted("cat", limit=limit, declare=True)
    assert pinned.statistics().limit == 3


def test_a_pin_stays_with_another_limit_until_it_is_taken_out(pinned: Scripts) -> None:
    pinned.resize(4)
    pinned.granted("ben", limit=9, declare=True)
    assert pinned.statistics().limit == 4
    pinned.resize(4, pin=0)
    pinned.resize(5)
    pinned.granted("cat", limit=6, declare=True)
    assert pinned.statistics().limit == 6


@pytest.mark.parametrize("verb", ["grant", "renew", "renew_many", "recheck", "resize", "declare"])
def test_a_pinned_limit_is_remembered_for_thirty_days_from_its_last_use(pinned: Scripts, verb: str) -> None:
    pinned.release("ann", permits=3)
    pinned.granted("ann")
    pinned.redis.pexpire(pinned.key("meta"), _DAY_MS)
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
    assert pttl(full, full.key("meta")) <= _DAY_MS


def test_a_request_without_a_limit_goes_by_the_one_in_force(full: Scripts) -> None:
    assert isinstance(full.grant("ben", limit=0, wait=False), Busy)
    full.release("ann", permits=3)
    assert full.granted("ben", limit=0).limit_before == 0
    assert full.statistics().limit == 3
    full.redis.delete(full.key("meta"))
    assert full.granted("ben", limit=0).fence > 0, "asked again, it is the same grant"


@pytest.mark.parametrize("wait", [True, False])
def test_a_request_without_a_limit_is_refused_where_none_is_in_force(semaphore: Scripts, wait: bool) -> None:
    assert semaphore.grant("ann", limit=0, wait=wait) == Refused(0)
    assert contents(semaphore) == {}


def test_a_higher_limit_that_is_declared_serves_the_waiters_first(full: Scripts) -> None:
    full.queued("ben")
    full.queued("cat", session="away")
    with listening(full, "away") as inbox:
        answer = full.queued("dan", limit=5, declare=True)
        assert [message.who for message in inbox.messages()] == ["cat"]
    assert [grant.who for grant in answer.mine] == ["ben"]


def test_a_higher_limit_declared_by_a_refused_caller_serves_the_waiters(full: Scripts) -> None:
    """W7: every verb that finds something free hands it over."""
    full.queued("ben")
    answer = full.grant("cat", permits=9, limit=5, declare=True)
    assert answer == Refused(5, mine=[Grant("ben", fence_of(full, "ben"), TTL)], limit_before=3)
    assert full.statistics().limit == 5


def test_a_higher_limit_declared_by_a_holder_serves_the_waiters(full: Scripts) -> None:
    full.queued("ben")
    answer = full.granted("ann", permits=3, limit=5, declare=True)
    assert [grant.who for grant in answer.mine] == ["ben"]
    assert (answer.limit_before, full.statistics().limit) == (3, 5)


def test_a_refused_caller_neither_holds_nor_waits(full: Scripts) -> None:
    before = contents(full)
    assert full.grant("ben", permits=4) == full.grant("ben", permits=4, limit=9) == Refused(3)
    assert contents(full) == before


def test_a_waiter_that_is_refused_when_it_asks_again_is_not_in_the_queue_any_more(full: Scripts) -> None:
    """Its first answer was lost, and the limit has been lowered since: a turn later on would be nobody's (P7)."""
    full.queued("ben", permits=2)
    full.queued("cat", permits=3)
    full.resize(2)
    assert full.grant("cat", permits=3) == Refused(2)
    assert line(full) == ["ben"]


def test_resizing_puts_the_limit_in_force_and_says_what_it_was(semaphore: Scripts) -> None:
    assert semaphore.resize(7) == (0, [])
    semaphore.granted("ann", permits=7, limit=3)
    assert semaphore.resize(4) == (7, [])
    assert semaphore.statistics().limit == 4


def test_a_higher_limit_is_handed_over_in_the_reply(full: Scripts) -> None:
    """And by message, to other sessions."""
    for who, session in (("ben", "home"), ("cat", "away"), ("dan", "home")):
        full.queued(who, session=session)
    with listening(full, "away") as inbox:
        assert [grant.who for grant in full.resize(5)[1]] == ["ben"]
        assert [message.who for message in inbox.messages()] == ["cat"]
    assert line(full) == ["dan"]


def test_the_resize_script_ends_no_lease_for_a_lower_limit(full: Scripts) -> None:
    fence = full.granted("ann", permits=3).fence
    full.resize(1)
    assert full.renew("ann")
    assert full.granted("ann", permits=3).fence == fence
    assert full.statistics().permits == 3


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


@told_either_way
def test_a_lower_limit_refuses_by_message_the_waiters_that_want_more(full: Scripts) -> None:
    full.queued("ben", permits=3, session="away")
    with listening(full, "away") as inbox:
        full.resize(2)
        assert [(refused.who, refused.fence, refused.amount) for refused in inbox.messages()] == [("ben", -1, 2)]
    assert sessions(full) == line(full, "away") == []


def test_a_refusal_names_a_large_limit_in_digits(full: Scripts) -> None:
    full.resize(1_000_000_000)
    full.granted("ben", permits=999_999_997)
    full.queued("cat", permits=1_000_000_000, session="away")
    with listening(full, "away") as inbox:
        full.resize(999_999_999)
        [text] = inbox.texts()
    assert text.split(b" ")[1:3] == [b"-1", b"999999999"]


@pytest.mark.parametrize("session", ["away", poller(5_000)])
def test_a_waiter_that_no_refusal_can_reach_finds_itself_unknown(full: Scripts, session: str) -> None:
    """Then it asks anew, and is refused in the reply."""
    big = entry("ben", permits=3)
    full.queued("ben", permits=3, session=session)
    full.resize(2)
    assert full.recheck(big, session=session).answers == [0]
    assert full.grant("ben", permits=3, session=session) == Refused(2)


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("passed_over", [False, True])
def test_a_waiter_that_wants_too_much_and_is_not_first_finds_itself_unknown(
    full: Scripts, limit: int, passed_over: bool
) -> None:
    full.queued("ben")
    full.queued("cat", permits=limit + 1)
    full.resize(limit)
    if passed_over:
        full.redis.delete(full.key("queue"))
    recheck = full.recheck("ben", entry("cat", permits=limit + 1))
    assert ([answer > 0 for answer in recheck.answers], recheck.passed_over) == ([True, False], passed_over)
    assert line(full) == ["ben"]
    assert full.grant("dan", permits=limit + 1) == Refused(limit)


@pytest.mark.parametrize("wait", [True, False])
def test_the_limit_is_kept_for_a_day_and_longer_than_any_lease(semaphore: Scripts, wait: bool) -> None:
    """Also one declared by a caller that gets nothing."""
    for declare in (lambda: semaphore.grant("zoe", permits=9, wait=wait), lambda: semaphore.resize(5)):
        declare()
        assert _DAY_MS - 60_000 < pttl(semaphore, semaphore.key("meta")) <= _DAY_MS
    semaphore.granted("ann", ttl_ms=5 * _DAY_MS)
    semaphore.resize(2)
    assert pttl(semaphore, semaphore.key("meta")) > 5 * _DAY_MS


def test_a_limit_that_is_declared_is_in_force_at_once_whether_enough_is_free_or_not(semaphore: Scripts) -> None:
    semaphore.granted("ann")
    assert semaphore.granted("ben", limit=3, declare=True).limit_before == 0
    assert semaphore.granted("cat", limit=4, declare=True).limit_before == 3
    semaphore.granted("dan")
    assert semaphore.granted("eve", limit=5, declare=True).limit_before == 4
    assert semaphore.statistics().limit == 5


def test_free_permits_go_to_the_waiters_though_the_asking_caller_wants_more(semaphore: Scripts) -> None:
    """W7: the first in line has fallen silent."""
    semaphore.resize(4)
    semaphore.granted("ann", permits=2)
    with listening(semaphore, "away"):
        semaphore.queued("ben", permits=3, session="away")
        semaphore.queued("cat")
    answer = semaphore.grant("dan", permits=3, wait=False)
    assert isinstance(answer, Busy)
    assert [grant.who for grant in answer.mine] == ["cat"]


def test_a_lower_limit_grants_nothing_until_enough_has_come_back(semaphore: Scripts) -> None:
    for who in ("ann", "ben", "cat"):
        semaphore.granted(who)
    semaphore.queued("dan")
    semaphore.resize(1)
    assert semaphore.release("ann").mine == semaphore.release("ben").mine == []
    assert isinstance(semaphore.grant("eve", wait=False), Busy)
    assert [grant.who for grant in semaphore.release("cat").mine] == ["dan"]
