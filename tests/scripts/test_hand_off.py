"""W17: a lease that is handed off stands under a secret until it is adopted, once, with a fencing token of its own."""

import time

from aiolocks._core.modes import SHARED, UPGRADEABLE
from tests.scripts.calls import TTL, Busy, Granted, Scripts, Withdrawn
from tests.scripts.states import contents, fence_of, holders, lapse, line, mark, pttl, set_last_fence

SLACK = 2_000
"""Milliseconds that a busy machine may take in between."""


def test_the_secret_stands_in_place_of_the_holder(offered: Scripts) -> None:
    assert list(holders(offered)) == ["offer"]
    assert isinstance(offered.grant("ben", wait=False), Busy)
    assert offered.statistics().holders == 1


def test_an_offer_lasts_as_long_as_its_request_says_and_never_less_than_before(held: Scripts) -> None:
    held.hand_off("ann", ttl_ms=3 * TTL)
    assert 3 * TTL - SLACK < holders(held)["offer"] <= 3 * TTL
    other = held.named("other")
    other.limit = 1
    other.granted("ann")
    other.hand_off("ann", ttl_ms=100)
    assert TTL - SLACK < holders(other)["offer"] <= TTL
    assert min(pttl(other, key) for key in contents(other)) > TTL - SLACK


def test_the_old_holder_has_nothing_any_more(offered: Scripts) -> None:
    before = contents(offered)
    assert not offered.renew("ann", ttl_ms=10 * TTL)
    assert offered.renew_many((offered, "ann", TTL)) == [False]
    assert not offered.release("ann").ended
    assert contents(offered) == before


def test_the_secret_can_be_adopted_or_released_and_nothing_else(offered: Scripts) -> None:
    before = contents(offered)
    assert not offered.renew("offer", ttl_ms=10 * TTL)
    assert offered.renew_many((offered, "offer", TTL)) == [False]
    assert offered.grant("offer", wait=False) == Withdrawn()
    assert offered.hand_off("offer", "another") == 0
    assert contents(offered) == before
    assert offered.release("offer").ended
    assert holders(offered) == {}


def test_an_offer_is_adopted_once_with_a_larger_fencing_token(offered: Scripts) -> None:
    before = fence_of(offered, "offer")
    fence = offered.adopt("ben")
    assert fence > before
    assert fence_of(offered, "ben") == fence
    assert list(holders(offered)) == ["ben"]
    assert offered.adopt("cat") == 0
    assert list(holders(offered)) == ["ben"]
    assert offered.statistics().holders == 1


def test_the_clock_may_have_stepped_back_before_it_is_adopted(held: Scripts) -> None:
    far = fence_of(held, "ann") + 3_600_000_000
    set_last_fence(held, far)
    held.hand_off("ann")
    assert held.adopt("ben") == far + 1


def test_an_adopter_that_asks_again_gets_the_same_lease(offered: Scripts) -> None:
    fence = offered.adopt("ben")
    assert offered.adopt("ben", ttl_ms=2 * TTL) == fence
    assert 2 * TTL - SLACK < holders(offered)["ben"] <= 2 * TTL
    assert offered.adopt("ben", ttl_ms=100) == fence
    assert holders(offered)["ben"] > 2 * TTL - SLACK, "it was shortened"


def test_a_repeated_offer_says_the_same_and_changes_nothing(offered: Scripts) -> None:
    before = contents(offered)
    assert offered.hand_off("ann") == 1
    assert contents(offered) == before


def test_an_offer_that_comes_when_it_was_released_does_nothing(held: Scripts) -> None:
    held.release("ann")
    assert held.hand_off("ann") == 0
    assert holders(held) == {}
    held.granted("ben")
    assert held.hand_off("ann") == 0
    assert list(holders(held)) == ["ben"]


def test_an_offer_that_has_ended_is_not_adopted_and_none_is_made(offered: Scripts) -> None:
    lapse(offered, "offer")
    assert offered.adopt("ben") == 0
    assert holders(offered) == {}
    offered.granted("cat")
    assert offered.adopt("ben") == 0
    assert list(holders(offered)) == ["cat"]


def test_an_adopted_lease_is_like_any_other(offered: Scripts) -> None:
    offered.queued("cat")
    offered.adopt("ben")
    assert offered.renew("ben", ttl_ms=3 * TTL)
    assert offered.renew_many((offered, "ben", TTL)) == [True]
    granted = offered.grant("ben")
    assert isinstance(granted, Granted)
    assert granted.fence == fence_of(offered, "ben")
    assert line(offered) == ["cat"]
    released = offered.release("ben")
    assert released.ended
    assert [grant.who for grant in released.mine] == ["cat"]


def test_a_late_acquire_of_the_old_token_is_granted_nothing(held: Scripts) -> None:
    held.hand_off("ann", tombstone_ms=60_000)
    assert held.grant("ann") == Withdrawn()
    assert 60_000 - SLACK < pttl(held, held.key("tombstone", who="ann")) <= 60_000


def test_an_adoption_that_comes_after_its_undo_does_nothing(offered: Scripts) -> None:
    offered.release("ben", tombstone_ms=60_000)
    assert offered.adopt("ben") == 0
    assert list(holders(offered)) == ["offer"]


def test_what_is_revoked_is_not_handed_off(held: Scripts) -> None:
    mark(held, "ann")
    assert held.hand_off("ann") == -1
    assert list(holders(held)) == ["ann"]


def test_an_adopted_lease_can_be_handed_off_again_and_is_gone_once_it_is_revoked(offered: Scripts) -> None:
    offered.adopt("ben")
    assert offered.hand_off("ben", "second") == 1
    assert offered.adopt("cat") == 0
    assert offered.adopt("cat", "second") > 0
    mark(offered, "cat")
    assert offered.adopt("cat", "second") == 0


def test_a_revoked_offer_is_freed_at_once(offered: Scripts) -> None:
    offered.queued("cat")
    revoked = offered.revoke(fence_of(offered, "offer"))
    assert revoked.left_ms == 0
    assert [grant.who for grant in revoked.mine] == ["cat"]
    assert offered.adopt("ben") == 0


def test_what_is_only_in_the_way_cannot_be_handed_off_or_adopted(held: Scripts) -> None:
    held.release("ann", min_hold_ms=TTL)
    assert held.hand_off("ann") == 0
    assert held.adopt("ben", "ann") == 0
    assert list(holders(held)) == ["ann"]


def test_the_adopt_script_counts_min_hold_from_the_adoption(held: Scripts) -> None:
    held.hand_off("ann")
    time.sleep(0.3)
    held.adopt("ben")
    held.release("ben", min_hold_ms=5_000)
    assert 5_000 - 250 < holders(held)["ben"] <= 5_000


def test_the_adopt_script_passes_the_permits_on(semaphore: Scripts) -> None:
    semaphore.granted("ann", permits=2)
    semaphore.hand_off("ann")
    assert semaphore.statistics().permits == 2
    assert isinstance(semaphore.grant("dan", permits=2, wait=False), Busy)
    semaphore.adopt("ben")
    assert (semaphore.statistics().permits, semaphore.statistics().holders) == (2, 1)
    assert isinstance(semaphore.grant("dan", permits=1), Granted)
    assert semaphore.release("ben", permits=2).ended
    assert (semaphore.statistics().permits, semaphore.statistics().holders) == (1, 1)


def test_modes_go_along(rwlock: Scripts) -> None:
    rwlock.granted("ann", permits=SHARED)
    rwlock.granted("una", permits=UPGRADEABLE)

    def both_are_held() -> bool:
        writer, upgradeable = (rwlock.grant("dan", wait=False), rwlock.grant("vic", permits=UPGRADEABLE, wait=False))
        return isinstance(writer, Busy) and isinstance(upgradeable, Busy)

    rwlock.hand_off("ann")
    rwlock.hand_off("una", "second")
    assert both_are_held()
    rwlock.adopt("ben")
    rwlock.adopt("bea", "second")
    assert both_are_held()
    rwlock.release("bea", permits=UPGRADEABLE)
    assert isinstance(rwlock.grant("vic", permits=UPGRADEABLE), Granted)
    rwlock.release("vic", permits=UPGRADEABLE)
    rwlock.release("ben", permits=SHARED)
    assert isinstance(rwlock.grant("dan"), Granted)
