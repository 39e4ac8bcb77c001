"""A semaphore's permits: never more than the limit, first come first served, big requests not starved (P9)."""

from tests.scripts.calls import TTL, Busy, Grant, Scripts
from tests.scripts.states import die, fence_of, holders, keys, line, listening, sessions


def test_as_many_as_there_are_permits_hold_at_once(semaphore: Scripts) -> None:
    for who in ("ann", "ben"):
        semaphore.granted(who)
    assert isinstance(semaphore.grant("cat", permits=2, wait=False), Busy)
    semaphore.granted("dan")
    assert isinstance(semaphore.grant("eve", wait=False), Busy)
    assert list(holders(semaphore)) == ["ann", "ben", "dan"]


def test_a_request_for_several_sent_twice_and_renewed_takes_them_once(semaphore: Scripts) -> None:
    assert semaphore.granted("ann", permits=2) == semaphore.granted("ann", permits=2)
    semaphore.renew("ann")
    semaphore.recheck("ann")
    assert semaphore.statistics().permits == 2


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


def test_a_big_request_gets_its_turn_when_enough_has_come_back(semaphore: Scripts) -> None:
    for who in ("ann", "ben", "cat"):
        semaphore.granted(who)
    semaphore.queued("dan", permits=3)
    semaphore.queued("eve")
    assert semaphore.release("ann").mine == semaphore.release("ben").mine == []
    assert semaphore.release("cat").mine == [Grant("dan", fence_of(semaphore, "dan"), TTL)]
    assert line(semaphore) == ["eve"]


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


def test_a_big_request_of_a_polling_session_is_waited_for(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.queued("ben", permits=3, session="poll5000-deaf")
    assert isinstance(semaphore.grant("cat", wait=False), Busy)


def test_a_big_request_that_gives_up_lets_the_small_ones_in(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.queued("ben", permits=3)
    with listening(semaphore, "home"), listening(semaphore, "away") as inbox:
        semaphore.queued("cat", session="away")
        semaphore.release("ben", permits=3)
        assert [message.who for message in inbox.messages()] == ["cat"]


def test_statistics_count_everybody(semaphore: Scripts) -> None:
    fence = semaphore.granted("ann", permits=3).fence
    semaphore.queued("ben")
    semaphore.queued("cat", permits=2, session="away")
    counted = semaphore.statistics()
    assert (counted.permits, counted.holders, counted.waiting, counted.fence, counted.limit) == (3, 1, 2, fence, 3)


def test_statistics_of_an_unused_semaphore_are_zeros(exclusive: Scripts) -> None:
    counted = exclusive.statistics()
    assert (counted.permits, counted.holders, counted.waiting, counted.fence) == (0, 0, 0, 0)
    assert keys(exclusive) == []
