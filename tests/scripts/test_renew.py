"""`renew` extends the lease of a holder, and does nothing else (P3, P5)."""

import pytest

from tests.scripts.calls import TTL, Scripts
from tests.scripts.states import contents, fence_of, holders, lapse, pttl


def test_a_renewal_extends_the_lease_of_its_holder_and_keeps_its_fencing_token(exclusive: Scripts) -> None:
    fence = exclusive.granted("ann", ttl_ms=5_000).fence
    assert exclusive.renew("ann", TTL)
    assert TTL - 1_000 < holders(exclusive)["ann"] <= TTL
    assert fence_of(exclusive, "ann") == fence


def test_a_renewal_never_shortens_a_lease(exclusive: Scripts) -> None:
    exclusive.granted("ann", ttl_ms=2 * TTL)
    assert exclusive.renew("ann", TTL)
    assert holders(exclusive)["ann"] > TTL


@pytest.mark.parametrize("stranger", ["ben", "an", "annn"])
def test_a_renewal_never_extends_the_lease_of_another_holder(exclusive: Scripts, stranger: str) -> None:
    exclusive.granted("ann", ttl_ms=5_000)
    exclusive.queued("ben")
    before = contents(exclusive)
    assert not exclusive.renew(stranger, TTL)
    assert contents(exclusive) == before
    assert holders(exclusive)["ann"] <= 5_000


def test_a_renewal_creates_no_lease_and_brings_none_back(exclusive: Scripts) -> None:
    assert not exclusive.renew("ann")
    assert contents(exclusive) == {}
    exclusive.granted("ann")
    lapse(exclusive, "ann")
    assert not exclusive.renew("ann")
    assert holders(exclusive) == {}


def test_a_lock_with_a_plain_token_is_renewed_alone_and_stays_plain(lock: Scripts) -> None:
    lock.redis.set(lock.keys.base, b"ann".ljust(32, b"0"), px=5_000)
    assert lock.renew("ann", TTL)
    assert lock.redis.get(lock.keys.base) == b"ann".ljust(32, b"0")


def test_a_renewal_keeps_what_a_semaphore_knows_of_its_holders(semaphore: Scripts) -> None:
    """Limit and fencing token must not run out before the leases do."""
    semaphore.granted("ann")
    semaphore.redis.pexpire(semaphore.key("meta"), 1_000)
    semaphore.renew("ann", 10 * TTL)
    assert pttl(semaphore, semaphore.key("meta")) > 10 * TTL
