"""A semaphore's permits: never more than the limit, first come first served, big requests not starved (P9)."""

from tests.scripts.calls import Busy, Scripts
from tests.scripts.states import die, fence_of, listening, sessions


def test_a_waiter_gets_as_many_as_it_asked_for(full: Scripts) -> None:
    full.queued("ben", permits=2, session="away")
    with listening(full, "away"):
        full.release("ann", permits=3)
    assert full.statistics().permits == 2
    assert fence_of(full, "ben") == full.statistics().fence


def test_a_small_request_does_not_pass_a_big_one_of_another_session(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.queued("ben", permits=3, session="away")
    with listening(semaphore, "away") as inbox:
        semaphore.queued("cat")
        assert isinstance(semaphore.grant("dan", wait=False), Busy)
        assert inbox.texts() == []


def test_waiters_behind_a_big_request_that_cannot_be_reached_get_returned_permits(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.granted("bob")
    semaphore.queued("ben", permits=3, session="away")
    semaphore.queued("cat")
    assert [grant.who for grant in semaphore.release("bob").mine] == ["cat"]


def test_a_big_request_of_a_dead_session_keeps_no_other_caller_waiting(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.queued("ben", permits=3, session="away")
    die(semaphore, "away")
    with listening(semaphore, "away"):
        semaphore.granted("cat")
    assert sessions(semaphore) == []
