"""A semaphore's permits: never more than the limit, first come first served, big requests not starved (P9)."""

import random

import pytest
from redis import Redis

from tests.scripts.calls import TTL, Busy, Grant, Scripts
from tests.scripts.states import die, fence_of, holders, keys, lapse, line, listening, sessions
from tests.support.cases import the_rest_slow

pytest_plugins = ["tests.scripts.fixtures"]


def test_as_many_as_there_are_permits_hold_at_once(semaphore: Scripts) -> None:
    for who in ("ann", "ben", "cat"):
        semaphore.granted(who)
    assert isinstance(semaphore.grant("dan", wait=False), Busy)
    assert list(holders(semaphore)) == ["ann", "ben", "cat"]


def test_a_holder_may_have_several_permits(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.granted("ben")
    assert semaphore.statistics().permits == 3
    assert isinstance(semaphore.grant("cat", wait=False), Busy)


def test_more_than_is_free_is_not_granted(semaphore: Scripts) -> None:
    semaphore.granted("ann")
    semaphore.granted("ben")
    assert isinstance(semaphore.grant("cat", permits=2, wait=False), Busy)
    semaphore.granted("dan")


def test_a_request_for_several_sent_twice_takes_them_once(semaphore: Scripts) -> None:
    assert semaphore.granted("ann", permits=2) == semaphore.granted("ann", permits=2)
    assert semaphore.statistics().permits == 2


def test_renewing_several_permits_takes_no_more(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.renew("ann")
    semaphore.recheck("ann")
    assert semaphore.statistics().permits == 2


def test_several_permits_come_back_together(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=3)
    for who in ("ben", "cat", "dan", "eve"):
        semaphore.queued(who)
    assert [grant.who for grant in semaphore.release("ann", permits=3).mine] == ["ben", "cat", "dan"]
    assert line(semaphore) == ["eve"]


def test_what_is_free_is_granted_though_others_hold(semaphore: Scripts) -> None:
    semaphore.granted("ann")
    semaphore.granted("ben", session="away")
    assert semaphore.release("ann").ended
    assert list(holders(semaphore)) == ["ben"]


def test_a_waiter_gets_as_many_as_it_asked_for(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=3)
    semaphore.queued("ben", permits=2, session="away")
    with listening(semaphore, "away"):
        semaphore.release("ann", permits=3)
    assert semaphore.statistics().permits == 2
    assert fence_of(semaphore, "ben") == semaphore.statistics().fence


def test_a_small_request_does_not_pass_a_big_waiting_request(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.queued("ben", permits=3)
    semaphore.queued("cat")
    assert isinstance(semaphore.grant("dan", wait=False), Busy)
    assert line(semaphore) == ["ben", "cat"]


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


def test_a_big_request_that_cannot_be_reached_keeps_no_waiter_from_free_permits(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.queued("ben", permits=3, session="away")
    semaphore.granted("cat")
    assert line(semaphore, "away") == ["ben"]


def test_waiters_behind_a_big_request_that_cannot_be_reached_get_returned_permits(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.granted("bob")
    semaphore.queued("ben", permits=3, session="away")
    semaphore.queued("cat")
    assert [grant.who for grant in semaphore.release("bob").mine] == ["cat"]


def test_a_big_request_that_cannot_be_reached_keeps_its_place_while_nothing_is_free(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=3)
    semaphore.queued("ben", permits=3, session="away")
    semaphore.queued("cat")
    assert isinstance(semaphore.grant("dan", wait=False), Busy)
    assert sessions(semaphore) == ["away", "home"]


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


def test_a_recheck_hands_over_free_permits(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.granted("ben")
    semaphore.queued("cat")
    semaphore.queued("dan", session="away")
    lapse(semaphore, "ann")
    with listening(semaphore, "away") as inbox:
        assert [grant.who for grant in semaphore.recheck("cat").mine] == ["cat"]
        assert [message.who for message in inbox.messages()] == ["dan"]


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


@pytest.mark.parametrize("seed", the_rest_slow(range(5), quick=2))
def test_no_traffic_takes_more_permits_than_there_are(backend: Redis, seed: int) -> None:
    """Whatever is asked in whatever order, by sessions that come and go, and by requests that come twice."""
    chance = random.Random(seed)
    semaphore = Scripts(backend, "semaphore", limit=5)
    asked: dict[str, tuple[str, int]] = {}
    with listening(semaphore, "s0"), listening(semaphore, "s1"):
        for step in range(150):
            asked.setdefault(f"w{step}w", (f"s{chance.randrange(3)}", chance.choice([1, 1, 2, 5, 6])))
            who = chance.choice(list(asked))
            session, permits = asked[who]
            match chance.randrange(8):
                case 0 | 1 | 2:
                    semaphore.grant(who, session=session, permits=permits, wait=chance.random() < 0.7)
                case 3 | 4 | 5:
                    semaphore.release(who, session=session, permits=permits)
                case 6:
                    semaphore.recheck(*asked, session=session)
                case _:
                    lapse(semaphore, who)
            taken = sum(asked[who][1] for who, left in holders(semaphore).items() if left > 0)
            assert taken == semaphore.statistics().permits <= 5
