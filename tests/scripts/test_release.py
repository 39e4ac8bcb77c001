"""`release` undoes whatever a token has, and nobody else's; then it hands over."""

import pytest

from tests.scripts.calls import TTL, Scripts, token
from tests.scripts.states import contents, holders, lapse, pttl


@pytest.mark.parametrize("stranger", ["ben", "an", "annn"])
def test_a_release_never_ends_the_lease_of_another_holder(held: Scripts, stranger: str) -> None:
    held.queued("cat")
    before = contents(held)
    assert not held.release(stranger).ended
    assert contents(held) == before


def test_releasing_an_unused_name_or_a_lease_that_ran_out_ends_nothing(exclusive: Scripts) -> None:
    assert not exclusive.release("ann").ended
    assert contents(exclusive) == {}
    exclusive.granted("ann")
    lapse(exclusive, "ann")
    assert not exclusive.release("ann").ended


def test_a_tombstone_is_left_only_when_asked_for_and_goes_by_itself(held: Scripts) -> None:
    held.release("ann")
    assert not held.redis.exists(held.key("tombstone", who="ann"))
    held.release("ann", tombstone_ms=60_000)
    assert 59_000 < pttl(held, held.key("tombstone", who="ann")) <= 60_000


def test_a_release_that_finds_it_free_hands_over(awaited_here: Scripts) -> None:
    """W7: somebody's lease ran out meanwhile."""
    lapse(awaited_here, "ann")
    assert [grant.who for grant in awaited_here.release("zoe").mine] == ["ben"]


def test_a_lock_with_a_plain_token_is_released_by_it_and_by_no_other(lock: Scripts) -> None:
    lock.redis.set(lock.keys.base, b"ann".ljust(32, b"0"))
    assert not lock.release("ben").ended
    assert lock.redis.exists(lock.keys.base)
    assert lock.release("ann").ended
    assert holders(lock) == {}


@pytest.mark.parametrize(("behind", "mine"), [(b" 77", False), (b" 77 C", False), (b"", True)])
def test_an_exact_key_is_renewed_and_released_by_its_very_value_alone(lock: Scripts, behind: bytes, mine: bool) -> None:
    """P5, P10: the value of another library can begin with our token and a space."""
    lock.family = "exact"
    lock.redis.set(lock.keys.base, token("ann") + behind, px=TTL)
    assert lock.renew("ann", 2 * TTL) == mine
    assert lock.renew_many((lock, "ann", 3 * TTL)) == [mine]
    assert (pttl(lock, lock.keys.base) > TTL) == mine
    assert lock.release("ann").ended == mine
    assert lock.redis.exists(lock.keys.base) != mine
