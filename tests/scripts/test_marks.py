"""W16: what each verb makes of a lease with a mark, which is a third word beside its token and fencing token."""

import pytest
from redis import Redis

from aiolocks._core.modes import FRONT, SHARED, UPGRADE, UPGRADEABLE
from tests.scripts.calls import LIFE, TTL, Grant, Granted, Kind, Refused, Scripts, Withdrawn, token, upgrade_of
from tests.scripts.states import contents, fence_of, holders, line, mark, zset

REVOKED = -1


@pytest.fixture
def revoked(exclusive: Scripts) -> Scripts:
    """Held by ann, whose lease is revoked."""
    exclusive.granted("ann", ttl_ms=5_000)
    mark(exclusive, "ann")
    return exclusive


def _renew(scripts: Scripts, who: str, ttl_ms: int = TTL) -> int:
    answer: int = scripts.run("renew", who=who, ttl_ms=ttl_ms)
    return answer


def test_a_renewal_is_told_and_changes_nothing(revoked: Scripts) -> None:
    before = contents(revoked)
    assert (_renew(revoked, "ann"), _renew(revoked, "ben")) == (REVOKED, 0)
    assert holders(revoked)["ann"] <= 5_000
    assert contents(revoked) == before


@pytest.mark.parametrize(("letter", "alone"), [("R", REVOKED), ("C", 0)])
def test_of_many_it_is_left_to_be_renewed_alone_and_is_not(exclusive: Scripts, letter: str, alone: int) -> None:
    other = exclusive.named("orders:43")
    for scripts in (exclusive, other):
        scripts.granted("ann", ttl_ms=5_000)
    mark(exclusive, "ann", letter)
    for scripts in (exclusive, other):  # a longer TTL is known, so that nothing else stands in the way
        if scripts.kind != "lock":
            scripts.redis.hset(scripts.key("meta"), "ttl", TTL)
    assert exclusive.renew_many((exclusive, "ann", TTL), (other, "ann", TTL)) == [False, True]
    assert _renew(exclusive, "ann") == alone
    assert holders(exclusive)["ann"] <= 5_000 < holders(other)["ann"]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("ticket", [0, 7])
def test_an_acquire_of_its_token_that_comes_late_is_withdrawn_and_changes_nothing(
    revoked: Scripts, wait: bool, ticket: int
) -> None:
    """It would wait in line behind itself, and its own release would grant it once more."""
    before = contents(revoked)
    assert revoked.grant("ann", ttl_ms=5_000, wait=wait, ticket=ticket) == Withdrawn()
    assert contents(revoked) == before


@pytest.mark.parametrize("exclusive", ["lock", "semaphore"], indirect=True)
def test_a_late_acquire_of_a_revoked_token_that_takes_a_short_answer_is_withdrawn_too(awaited_here: Scripts) -> None:
    mark(awaited_here, "ann")
    before = contents(awaited_here)
    assert awaited_here.grant("ann", brief=True) == Withdrawn()
    assert contents(awaited_here) == before


@pytest.mark.parametrize(("kind", "share"), [("semaphore", 1), ("rwlock", SHARED)])
def test_a_late_acquire_of_a_revoked_lease_is_withdrawn_if_others_fit(backend: Redis, kind: Kind, share: int) -> None:
    """It was granted beside its own revoked lease, which so was not revoked any more."""
    scripts = Scripts(backend, kind, limit=3)
    for who in ("ann", "ben"):
        scripts.granted(who, permits=share)
    mark(scripts, "ann")
    before = contents(scripts)
    assert scripts.grant("ann", permits=share) == Withdrawn()
    assert contents(scripts) == before
    assert _renew(scripts, "ben") == 1


def test_a_recheck_of_it_extends_nothing_and_takes_it_out_of_the_line(revoked: Scripts) -> None:
    """Where an older script has put it."""
    revoked.redis.zadd(revoked.key("waiters"), {revoked.entry("ann"): 5})
    revoked.queued("ben")
    before = holders(revoked)["ann"]
    assert revoked.recheck("ann", "ben").answers[0] == 0
    assert holders(revoked)["ann"] <= before
    assert line(revoked) == ["ben"]


@pytest.mark.parametrize("waiters", [[], ["ben"], ["ben", "cat"]])
def test_its_release_hands_over_to_its_own_session(revoked: Scripts, waiters: list[str]) -> None:
    for who in waiters:
        revoked.queued(who)
    before = fence_of(revoked, "ann")
    released = revoked.release("ann")
    assert released.ended
    assert list(holders(revoked)) == waiters[:1]
    assert released.mine == [Grant(who, fence_of(revoked, who), TTL) for who in waiters[:1]]
    assert all(grant.fence > before and _renew(revoked, grant.who) == 1 for grant in released.mine)
    assert line(revoked) == waiters[1:]


def test_what_is_revoked_is_not_downgraded(rwlock: Scripts) -> None:
    rwlock.granted("ann")
    rwlock.queued("ben", permits=SHARED)
    mark(rwlock, "ann")
    before = contents(rwlock)
    answer = rwlock.run("downgrade", who="ann", mode=SHARED, life_ms=LIFE)
    assert answer == [REVOKED]
    assert contents(rwlock) == before


@pytest.mark.parametrize("wait", [True, False])
def test_no_upgrade_grows_from_what_is_revoked(rwlock: Scripts, wait: bool) -> None:
    rwlock.granted("ann", permits=UPGRADEABLE)
    mark(rwlock, "ann")
    answer = rwlock.grant(upgrade_of("ann"), permits=UPGRADE, ticket=FRONT, wait=wait)
    assert answer == Refused(REVOKED)
    assert list(holders(rwlock)) == ["ann"]


def test_an_upgrade_that_waits_for_readers_is_refused_once_it_is_looked_at(rwlock: Scripts) -> None:
    rwlock.granted("ann", permits=UPGRADEABLE)
    rwlock.granted("ben", permits=SHARED)
    rwlock.queued(upgrade_of("ann"), permits=UPGRADE, ticket=FRONT)
    mark(rwlock, "ann")
    released = rwlock.release("ben", permits=SHARED)
    assert [(grant.fence, grant.amount) for grant in released.mine] == [(-1, REVOKED)]
    assert line(rwlock) == []


def test_a_marked_lease_that_has_run_out_is_dropped_like_any_other(full: Scripts) -> None:
    mark(full, "ann")
    full.redis.zadd(full.keys.base, {token("ann"): 1})
    full.redis.hset(full.key("meta"), "used", "0")
    assert isinstance(full.grant("ben", permits=3), Granted)
    assert list(zset(full, full.keys.base)) == [token("ben")]
