"""Who is passed over when it comes free: sessions that are dead or cannot be reached (W1, W2)."""

from tests.scripts.calls import Scripts, told_either_way
from tests.scripts.states import die, holders, line, listening, monitoring, sessions, tickets

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


def test_the_next_of_the_releasing_session_gets_it(awaited: Scripts) -> None:
    awaited.queued("cat", session="home")
    awaited.queued("dan", session="third")
    assert [grant.who for grant in awaited.release("ann", session="home").mine] == ["cat"]
    assert sessions(awaited) == ["third"], "it is behind one that has got the lock"


def test_a_session_whose_line_ran_out_is_dead(awaited: Scripts) -> None:
    awaited.queued("cat", session="third")
    die(awaited, "away")
    with listening(awaited, "away") as away, listening(awaited, "third"):
        awaited.release("ann")
        assert away.texts() == []
    assert list(holders(awaited)) == ["cat"]
    assert sessions(awaited) == []
