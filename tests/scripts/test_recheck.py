"""`recheck`: a session's sign of life, its answer about every waiter, and the cure for lost messages."""

from tests.scripts import states
from tests.scripts.calls import LIFE, TTL, Scripts, poller, told_either_way


def test_a_recheck_sets_the_life_of_the_line_even_when_that_is_shorter(awaited_here: Scripts) -> None:
    """W3: a lease handed to a session that has stopped must find its other waiters gone when it lapses."""
    awaited_here.renew("ann", 2 * TTL)
    awaited_here.redis.pexpire(awaited_here.key("waiters"), 1_000)
    for life_ms in (LIFE, 2_000):
        awaited_here.recheck("ben", life_ms=life_ms)
        assert life_ms - 1_000 < states.pttl(awaited_here, awaited_here.key("waiters")) <= life_ms
        assert states.pttl(awaited_here, awaited_here.key("queue")) > TTL, "as long as the lease"


def test_every_token_is_answered_in_its_place(awaited_here: Scripts) -> None:
    awaited_here.queued("cat")
    places = states.tickets(awaited_here)
    assert awaited_here.recheck("cat", "ann", "nobody", "ben").answers == [
        places["cat"], -states.fence_of(awaited_here, "ann"), 0, places["ben"]
    ]  # fmt: skip
    assert awaited_here.recheck(awaited_here.entry("ben", ttl_ms=5)).answers == [0], "it has other terms"
    assert awaited_here.recheck("ben", session="away").answers == [0]


def test_a_thousand_waiters_are_answered_at_once(awaited_here: Scripts) -> None:
    for number in range(100):
        awaited_here.queued(f"w{number}w")
    answers = awaited_here.recheck(*(f"w{number}w" for number in range(1_000))).answers
    assert [answer > 0 for answer in answers] == [number < 100 for number in range(1_000)]


def test_a_recheck_creates_no_waiter(awaited_here: Scripts) -> None:
    """W8: one that overtook a withdrawal would put an orphan in line."""
    before = states.contents(awaited_here)
    assert awaited_here.recheck("nobody", session="away").answers == [0]
    unused = awaited_here.named("unused").recheck("zoe")
    assert (unused.answers, unused.busy_ms) == ([0], -2)
    assert states.contents(awaited_here) == before


def test_a_session_that_was_passed_over_is_back_in_its_place(awaited_here: Scripts) -> None:
    awaited_here.queued("cat", session="away")
    awaited_here.redis.zrem(awaited_here.key("queue"), "home")
    assert not awaited_here.recheck("cat", session="away").passed_over
    assert awaited_here.recheck("ben").passed_over
    assert states.sessions(awaited_here) == ["home", "away"]


def test_a_turn_that_is_found_is_a_whole_lease(awaited_here: Scripts) -> None:
    awaited_here.queued("cat", session=poller(5_000))
    awaited_here.release("ann")
    awaited_here.release("ben")
    assert states.holders(awaited_here)["cat"] <= 10_000
    awaited_here.recheck("cat", session=poller(5_000))
    assert states.holders(awaited_here)["cat"] > TTL - 1_000


def test_a_recheck_that_finds_the_lock_free_hands_over_to_the_first_waiter(awaited_here: Scripts) -> None:
    awaited_here.queued("cat", session="away")
    states.lapse(awaited_here, "ann")
    with states.listening(awaited_here, "home") as inbox:
        assert awaited_here.recheck("cat", session="away").mine == []
        assert [message.who for message in inbox.messages()] == ["ben"]


def test_the_fencing_token_in_the_reply_is_older_than_the_grants_in_it(awaited_here: Scripts) -> None:
    """W5: a waiter believes only grants that are newer than the last one it was told of."""
    before = int(states.last_fence(awaited_here))
    states.lapse(awaited_here, "ann")
    recheck = awaited_here.recheck("ben")
    assert recheck.fence == before < states.fence_of(awaited_here, "ben")
    assert [(grant.who, grant.fence) for grant in recheck.mine] == [("ben", states.fence_of(awaited_here, "ben"))]


@told_either_way
def test_the_reply_to_a_recheck_counts_the_subscribers_of_its_session(awaited_here: Scripts) -> None:
    assert awaited_here.recheck("ben").subscribers == 0
    with states.listening(awaited_here, "home"):
        assert awaited_here.recheck("ben").subscribers == 1


def test_when_the_limit_was_forgotten_the_first_in_line_brings_it_back(full: Scripts) -> None:
    """It is told to ask anew, which declares the limit; nobody loses the place."""
    places = [full.queued(who).ticket for who in ("ben", "cat", "dan")]
    full.redis.delete(full.key("meta"))
    assert full.recheck("ben", "cat", "dan").answers == [0, *places[1:]]
    assert states.line(full) == ["ben", "cat", "dan"]
    assert full.queued("ben", ticket=places[0]).ticket == places[0]
    assert full.statistics().limit == 3
