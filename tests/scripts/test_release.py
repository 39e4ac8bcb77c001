"""`release` undoes whatever a token has, and nobody else's; then it hands over."""

import pytest

from tests.scripts.calls import Scripts, Withdrawn
from tests.scripts.states import contents, holders, lapse, line, listening, pttl, sessions

pytest_plugins = ["tests.scripts.fixtures"]


def test_a_holder_ends_its_lease(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    assert exclusive.release("ann").ended
    assert holders(exclusive) == {}


@pytest.mark.parametrize("stranger", ["ben", "an", "annn"])
def test_a_release_never_ends_the_lease_of_another_holder(exclusive: Scripts, stranger: str) -> None:
    exclusive.granted("ann")
    exclusive.queued("cat")
    before = contents(exclusive)
    assert not exclusive.release(stranger).ended
    assert contents(exclusive) == before


def test_a_release_that_comes_twice_never_ends_the_lease_of_another_holder(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    exclusive.release("ann")
    exclusive.granted("ben")
    assert not exclusive.release("ann").ended
    assert list(holders(exclusive)) == ["ben"]


def test_a_release_that_comes_twice_serves_one_waiter(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    exclusive.queued("ben")
    exclusive.queued("cat")
    exclusive.release("ann")
    assert exclusive.release("ann").mine == []
    assert (list(holders(exclusive)), line(exclusive)) == (["ben"], ["cat"])


def test_a_lease_that_ran_out_was_not_ended_by_its_release(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    lapse(exclusive, "ann")
    assert not exclusive.release("ann").ended


def test_releasing_an_unused_name_leaves_nothing(exclusive: Scripts) -> None:
    assert not exclusive.release("ann").ended
    assert contents(exclusive) == {}


def test_a_waiter_can_leave_the_queue(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    exclusive.queued("ben")
    exclusive.queued("cat")
    assert not exclusive.release("ben").ended
    assert line(exclusive) == ["cat"]


def test_the_last_waiter_takes_its_session_out_of_the_queue(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    exclusive.queued("ben")
    exclusive.release("ben")
    assert sessions(exclusive) == []


def test_a_waiter_that_leaves_lets_no_other_waiter_in(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    exclusive.queued("ben")
    exclusive.queued("cat")
    assert exclusive.release("ben").mine == []
    assert list(holders(exclusive)) == ["ann"]


def test_a_tombstone_is_left_only_when_asked_for(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    exclusive.release("ann")
    assert not exclusive.redis.exists(exclusive.key("tombstone", who="ann"))


@pytest.mark.parametrize("had", ["a lease", "a place in line", "nothing"])
def test_a_tombstone_is_left_whatever_there_was_to_undo(exclusive: Scripts, had: str) -> None:
    if had != "a lease":
        exclusive.granted("ann")
    if had != "nothing":
        exclusive.grant("ben")
    exclusive.release("ben", tombstone_ms=60_000)
    assert exclusive.grant("ben") == Withdrawn()


def test_a_tombstone_goes_by_itself(exclusive: Scripts) -> None:
    exclusive.release("ann", tombstone_ms=60_000)
    assert 59_000 < pttl(exclusive, exclusive.key("tombstone", who="ann")) <= 60_000


def test_a_holder_that_leaves_a_tombstone_hands_over_all_the_same(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    exclusive.queued("ben")
    assert [grant.who for grant in exclusive.release("ann", tombstone_ms=60_000).mine] == ["ben"]


def test_a_release_that_finds_it_free_hands_over(exclusive: Scripts) -> None:
    """W7: somebody's lease ran out meanwhile."""
    exclusive.granted("ann")
    exclusive.queued("ben")
    lapse(exclusive, "ann")
    assert [grant.who for grant in exclusive.release("zoe").mine] == ["ben"]


def test_a_waiter_that_leaves_when_it_is_free_lets_the_next_in(exclusive: Scripts) -> None:
    exclusive.granted("ann")
    exclusive.queued("ben")
    exclusive.queued("cat", session="away")
    lapse(exclusive, "ann")
    with listening(exclusive, "away") as inbox:
        exclusive.release("ben")
        assert [message.who for message in inbox.messages()] == ["cat"]


def test_a_lock_with_a_plain_token_is_released_by_it(lock: Scripts) -> None:
    lock.redis.set(lock.keys.base, b"ann".ljust(32, b"0"))
    assert lock.release("ann").ended
    assert holders(lock) == {}


def test_a_plain_token_of_another_is_left_alone(lock: Scripts) -> None:
    lock.redis.set(lock.keys.base, "plain-token")
    lock.release("ann")
    assert lock.redis.get(lock.keys.base) == b"plain-token"
