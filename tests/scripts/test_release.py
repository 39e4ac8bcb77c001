"""`release` undoes whatever a token has, and nobody else's; then it hands over."""

import pytest

from tests.scripts.calls import Released, Scripts, Withdrawn
from tests.scripts.states import contents, holders, lapse, line, listening, pttl, sessions


def test_a_holder_ends_its_lease(held: Scripts) -> None:
    assert held.release("ann").ended
    assert holders(held) == {}


@pytest.mark.parametrize("stranger", ["ben", "an", "annn"])
def test_a_release_never_ends_the_lease_of_another_holder(held: Scripts, stranger: str) -> None:
    held.queued("cat")
    before = contents(held)
    assert not held.release(stranger).ended
    assert contents(held) == before


def test_a_release_that_comes_twice_never_ends_the_lease_of_another_holder(held: Scripts) -> None:
    held.release("ann")
    held.granted("ben")
    assert not held.release("ann").ended
    assert list(holders(held)) == ["ben"]


def test_a_release_that_comes_twice_serves_one_waiter(awaited_here: Scripts) -> None:
    awaited_here.queued("cat")
    awaited_here.release("ann")
    assert awaited_here.release("ann").mine == []
    assert (list(holders(awaited_here)), line(awaited_here)) == (["ben"], ["cat"])


def test_releasing_an_unused_name_leaves_nothing(exclusive: Scripts) -> None:
    assert not exclusive.release("ann").ended
    assert contents(exclusive) == {}


def test_a_waiter_can_leave_the_queue(awaited_here: Scripts) -> None:
    awaited_here.queued("cat")
    assert awaited_here.release("ben") == Released(ended=False, mine=[])
    assert (list(holders(awaited_here)), line(awaited_here)) == (["ann"], ["cat"])
    awaited_here.release("cat")
    assert sessions(awaited_here) == []


def test_a_tombstone_is_left_only_when_asked_for_and_goes_by_itself(held: Scripts) -> None:
    held.release("ann")
    assert not held.redis.exists(held.key("tombstone", who="ann"))
    held.release("ann", tombstone_ms=60_000)
    assert 59_000 < pttl(held, held.key("tombstone", who="ann")) <= 60_000


@pytest.mark.parametrize("had", ["a lease", "a place in line", "nothing"])
def test_a_tombstone_is_left_whatever_there_was_to_undo(exclusive: Scripts, had: str) -> None:
    if had != "a lease":
        exclusive.granted("ann")
    if had != "nothing":
        exclusive.grant("ben")
    exclusive.release("ben", tombstone_ms=60_000)
    assert exclusive.grant("ben") == Withdrawn()


def test_a_release_that_finds_it_free_hands_over(awaited_here: Scripts) -> None:
    """W7: somebody's lease ran out meanwhile."""
    lapse(awaited_here, "ann")
    assert [grant.who for grant in awaited_here.release("zoe").mine] == ["ben"]


def test_a_waiter_that_leaves_when_it_is_free_lets_the_next_in(awaited_here: Scripts) -> None:
    awaited_here.queued("cat", session="away")
    lapse(awaited_here, "ann")
    with listening(awaited_here, "away") as inbox:
        awaited_here.release("ben")
        assert [message.who for message in inbox.messages()] == ["cat"]


def test_a_lock_with_a_plain_token_is_released_by_it_and_by_no_other(lock: Scripts) -> None:
    lock.redis.set(lock.keys.base, b"ann".ljust(32, b"0"))
    assert not lock.release("ben").ended
    assert lock.redis.exists(lock.keys.base)
    assert lock.release("ann").ended
    assert holders(lock) == {}


def test_a_lease_that_ran_out_was_not_ended_by_its_release(held: Scripts) -> None:
    lapse(held, "ann")
    assert not held.release("ann").ended
