"""Who is passed over when it comes free: sessions that are dead or cannot be reached (W1, W2)."""

import pytest

from tests.scripts.calls import Scripts, told_either_way
from tests.scripts.states import die, holders, keys, line, listening, monitoring, pttl, sessions, tickets

pytestmark = told_either_way


def test_a_waiter_that_cannot_be_reached_is_not_given_a_lease(awaited: Scripts) -> None:
    with listening(awaited, "third"):
        awaited.release("ann")
    assert holders(awaited) == {}


def test_a_monitor_makes_no_waiter_reachable(awaited: Scripts) -> None:
    """W1: PUBLISH would count it."""
    with monitoring(awaited):
        awaited.release("ann")
    assert holders(awaited) == {}


def test_a_waiter_that_is_passed_over_leaves_the_queue_and_keeps_its_session_and_ticket(awaited: Scripts) -> None:
    before = tickets(awaited, "away")
    awaited.queued("cat", session="away")
    awaited.release("ann")
    assert sessions(awaited) == []
    assert line(awaited, "away") == ["ben", "cat"]
    assert tickets(awaited, "away").items() >= before.items()


def test_the_next_waiter_that_can_be_reached_gets_the_lease(awaited: Scripts) -> None:
    awaited.queued("cat", session="third")
    awaited.queued("dan", session="fourth")
    with listening(awaited, "fourth") as inbox:
        awaited.release("ann")
        assert [message.who for message in inbox.messages()] == ["dan"]
    assert list(holders(awaited)) == ["dan"]


def test_the_next_of_the_releasing_session_gets_it(awaited: Scripts) -> None:
    awaited.queued("cat", session="home")
    assert [grant.who for grant in awaited.release("ann", session="home").mine] == ["cat"]


def test_no_waiter_behind_a_reachable_waiter_is_passed_over(awaited: Scripts) -> None:
    awaited.queued("cat", session="third")
    with listening(awaited, "away"):
        awaited.release("ann")
    assert sessions(awaited) == ["third"]


def test_a_session_whose_line_ran_out_is_dead(awaited: Scripts) -> None:
    awaited.queued("cat", session="third")
    die(awaited, "away")
    with listening(awaited, "away") as away, listening(awaited, "third"):
        awaited.release("ann")
        assert away.texts() == []
    assert list(holders(awaited)) == ["cat"]
    assert sessions(awaited) == []


def test_a_waiter_that_was_passed_over_is_reached_again_after_its_recheck(awaited: Scripts) -> None:
    """A lock somebody else took meanwhile does not cost the place."""
    awaited.release("ann")
    awaited.granted("cat", wait=False)
    awaited.recheck("ben", session="away")
    awaited.queued("dan", session="third")
    with listening(awaited, "away"), listening(awaited, "third"):
        awaited.release("cat")
    assert list(holders(awaited)) == ["ben"]


@pytest.mark.parametrize("wait", [True, False])
def test_a_newcomer_does_not_pass_waiters_of_its_own_session_that_were_passed_over(
    awaited: Scripts, wait: bool
) -> None:
    """Nobody is passed by `try_acquire`; and a session that asks can be reached by the answer."""
    awaited.release("ann")
    answer = awaited.grant("cat", session="away", wait=wait)
    assert list(holders(awaited)) == ["ben"]
    assert [grant.who for grant in getattr(answer, "mine", [])] == ["ben"]


@pytest.mark.parametrize("wait", [True, False])
def test_a_passed_over_waiter_that_is_granted_by_asking_again_is_served_once(awaited: Scripts, wait: bool) -> None:
    """P7: a second grant of a token that was released would be nobody's."""
    awaited.queued("cat", session="away")
    awaited.release("ann")
    awaited.granted("ben", session="away", wait=wait)
    assert line(awaited, "away") == ["cat"]
    awaited.recheck("cat", session="away")
    assert [grant.who for grant in awaited.release("ben", session="away").mine] == ["cat"]
    assert list(holders(awaited)) == ["cat"]


def test_waiters_of_the_releasing_session_that_were_passed_over_get_the_lease(awaited: Scripts) -> None:
    """The reply can reach them."""
    awaited.release("ann")
    awaited.granted("cat", wait=False)
    assert [grant.who for grant in awaited.release("cat", session="away").mine] == ["ben"]


def test_a_waiter_that_gives_up_or_asks_again_puts_a_session_that_was_passed_over_back(awaited: Scripts) -> None:
    """And no key lives for ever, though the session falls silent right after that."""
    awaited.queued("cat", session="away")
    awaited.release("ann")
    awaited.granted("dan", wait=False)
    awaited.release("ben", session="away")
    assert sessions(awaited) == ["away"]
    assert [key for key in keys(awaited) if pttl(awaited, key) < 0] == []
    awaited.redis.delete(awaited.key("queue"))
    awaited.queued("eve", session="third")
    awaited.queued("fay", session="away")
    assert sessions(awaited) == ["away", "third"]
