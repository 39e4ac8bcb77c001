"""W27: what is offered under a secret can be extended, and nothing else can; a release of the secret drops it."""

from tests.scripts.calls import SLACK, TTL, Scripts
from tests.scripts.states import contents, fence_of, holders, line, mark, pttl


def test_a_touch_extends_the_offer_and_answers_its_fencing_token(offered: Scripts) -> None:
    fence = fence_of(offered, "offer")
    assert offered.touch(ttl_ms=3 * TTL) == fence
    assert 3 * TTL - SLACK < holders(offered)["offer"] <= 3 * TTL
    assert min(pttl(offered, key) for key in contents(offered)) > 3 * TTL - SLACK
    assert offered.touch(ttl_ms=4 * TTL) == fence, "the second time too"
    assert holders(offered)["offer"] > 4 * TTL - SLACK
    assert offered.statistics().holders == 1


def test_a_touch_never_shortens_an_offer(offered: Scripts) -> None:
    fence = fence_of(offered, "offer")
    for ttl_ms in (100, 0):
        assert offered.touch(ttl_ms=ttl_ms) == fence
        assert holders(offered)["offer"] > TTL - SLACK


def test_a_touch_that_comes_late_creates_nothing(offered: Scripts) -> None:
    """It may have been sent before the drop, or an expiry, and arrive when another holds the name."""
    assert offered.release("offer").ended
    before = contents(offered)
    assert offered.touch() == 0
    assert contents(offered) == before
    assert holders(offered) == {}
    offered.granted("cat")
    before = contents(offered)
    assert offered.touch() == 0
    assert contents(offered) == before


def test_only_an_offer_can_be_touched(held: Scripts) -> None:
    """The token of a lease is no secret of an offer, whether it is held, revoked or kept by min_hold."""
    for revoked in (False, True):
        if revoked:
            mark(held, "ann")
        before = contents(held)
        assert held.touch("ann", ttl_ms=10 * TTL) == 0
        assert contents(held) == before
    other = held.named("other")
    other.granted("ben")
    other.release("ben", min_hold_ms=TTL)
    assert other.touch("ben", ttl_ms=10 * TTL) == 0
    assert holders(other)["ben"] <= TTL


def test_a_touch_after_the_adoption_says_so_and_changes_nothing(offered: Scripts) -> None:
    """So a lease of several names that is being adopted is not taken for one of which a name is gone."""
    offered.adopt("ben", ttl_ms=2 * TTL)
    assert offered.touch(ttl_ms=10 * TTL) == -1
    assert holders(offered)["ben"] <= 2 * TTL
    assert pttl(offered, offered.key("tombstone", who="offer")) > TTL, "as long as the adopter may need at least"
    offered.release("ben")
    assert offered.touch() == -1


def test_a_revoked_offer_ends_at_once_and_the_next_touch_finds_nothing(offered: Scripts) -> None:
    offered.queued("cat")
    offered.touch()
    revoked = offered.revoke(fence_of(offered, "offer"))
    assert revoked.left_ms == 0
    assert [grant.who for grant in revoked.mine] == ["cat"]
    assert offered.touch() == 0
    assert list(holders(offered)) == ["cat"]


def test_a_drop_hands_over_to_the_first_waiter_and_min_hold_does_not_keep_the_name(offered: Scripts) -> None:
    offered.queued("cat")
    offered.touch()
    dropped = offered.release("offer", min_hold_ms=10 * TTL)
    assert dropped.ended
    assert [grant.who for grant in dropped.mine] == ["cat"]
    assert line(offered) == []
    assert not offered.release("offer").ended
    assert list(holders(offered)) == ["cat"]
