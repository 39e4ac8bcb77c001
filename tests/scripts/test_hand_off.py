"""W17: a lease that is handed off stands under a secret until it is adopted, once, with a fencing token of its own."""

import time

from tests.scripts.calls import TTL, Scripts, Withdrawn
from tests.scripts.states import contents, holders, mark


def test_the_secret_can_be_adopted_or_released_and_nothing_else(offered: Scripts) -> None:
    before = contents(offered)
    assert not offered.renew("offer", ttl_ms=10 * TTL)
    assert offered.renew_many((offered, "offer", TTL)) == [False]
    assert offered.grant("offer", wait=False) == Withdrawn()
    assert offered.hand_off("offer", "another") == 0
    assert contents(offered) == before
    assert offered.release("offer").ended
    assert holders(offered) == {}


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
